"""What plans say of memory, and what they refuse with which remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynolab.costs.machines import machine_named
from dynolab.data.rows import Example
from dynolab.errors import ConfigError
from dynolab.hub import names_may_stay, resolve_commit
from flows.costs import PlannedCosts
from flows.flow import Step
from flows.parameters.parse import load_parameters
from flows.plan_table import remedy
from flows.study.parameters import StudyParameters
from flows.study.steps import study_steps
from models.unloaded import KNOWN, read_config
from tasks.shared import cost_inputs

LLAMA = "ultrafeedback_llama3_8b.yaml"


def planned(file: str, machine: str, *changes: str) -> tuple[list[Step], PlannedCosts]:
    steps = study_steps(load_parameters(StudyParameters, Path(file), changes))
    return steps, PlannedCosts(steps, machine_named(machine))


def remedies(file: str, machine: str, *changes: str) -> dict[str, str]:
    steps, costs = planned(file, machine, *changes)
    return {
        step.name: remedy(step, costs.machine)
        for step in steps
        if (cost := costs.of(step)) is not None and cost.lacks(costs.machine) is not None
    }


@pytest.mark.parametrize(
    ("file", "machine"),
    [
        ("hh_pythia410m.yaml", "h100"),
        ("hh_pythia1.4b.yaml", "h100"),
        ("hh_pythia2.8b.yaml", "h100x8"),
        (LLAMA, "h100x8"),
        ("hh_llama3_8b_lora.yaml", "l40s"),
    ],
)
def test_study_files_fit_the_machines_that_they_name(file: str, machine: str) -> None:
    assert remedies(file, machine) == {}


def test_a_study_of_8b_parameters_on_adapters_fits_24_gb_where_rows_are_short() -> None:
    short = [f"{stage}.max_length=192" for stage in ("sft", "preference")]
    assert remedies("hh_llama3_8b_lora.yaml", "rtx4090", *short, "audit={pairs: 200}") == {}


def test_what_does_not_fit_is_told_the_settings_by_which_it_takes_less() -> None:
    fp32 = [f"{stage}.engine={{ranks: 8, zero_stage: 0}}" for stage in ("sft", "preference")]
    steps = remedies(LLAMA, "h100x8", *fp32)
    assert set(steps) == {"sft", "preference"}
    assert all(f"under {stage}, set micro_batch_size=1" in steps[stage] for stage in steps)
    zero = [f"{stage}.engine.zero_stage=3" for stage in steps]
    assert remedies(LLAMA, "h100x8", *fp32, *zero) == {}


def test_copies_that_no_gpu_has_room_for_wait_in_main_memory() -> None:
    steps, costs = planned(LLAMA, "h100x8")
    cost = costs.of(next(step for step in steps if step.name == "preference-forces"))
    assert cost is not None
    copy = 4 * 8.03e9
    assert cost.rank_bytes < 2 * copy < 13 * copy < cost.host_bytes
    assert cost.lacks(machine_named("h100")) == (
        "needs 546.1 GB of main memory, and h100 has 256.0 GB"
    )


def test_a_probe_set_of_fewer_kinds_takes_fewer_passes() -> None:
    few = ("probe_set={kinds: [chosen, rejected]}",)
    every, fewer = (planned("hh_pythia410m.yaml", "h100", *changes) for changes in ((), few))
    steps, costs = every
    whole = costs.of(next(step for step in steps if step.name == "probe"))
    steps, costs = fewer
    part = costs.of(next(step for step in steps if step.name == "probe"))
    assert whole is not None and part is not None and part.hours < whole.hours


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("EleutherAI/pythia-410m-deduped", 405_334_016),
        ("EleutherAI/pythia-1.4b-deduped", 1_414_647_808),
        ("EleutherAI/pythia-2.8b-deduped", 2_775_208_960),
        ("Qwen/Qwen1.5-1.8B", 1_836_828_672),
        ("meta-llama/Meta-Llama-3-8B", 8_030_261_248),
    ],
)
def test_known_models_have_the_published_numbers_of_weights(name: str, parameters: int) -> None:
    import torch

    from dynolab.costs.shape import shape_of
    from models.unloaded import builder

    config = read_config(name)
    with torch.device("meta"):
        model = builder(config)(config.num_hidden_layers, torch.float32)
    assert shape_of(model).parameters == parameters
    assert name in KNOWN


def test_a_name_stays_where_the_hub_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", fails)
    with names_may_stay() as names:
        assert resolve_commit("model", "a/b", field="model") == "main"
    assert names == ["a/b"]
    with pytest.raises(ConfigError, match="did not resolve"):
        resolve_commit("model", "a/b", field="model")


def test_of_many_rows_a_sample_and_the_longest_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_inputs, "MOST_ROWS", 20)
    monkeypatch.setattr(cost_inputs, "LONGEST_ROWS", 2)
    rows = [
        Example(id=str(place), prompt="p" * (90 if place in (7, 61) else 5), chosen="a")
        for place in range(80)
    ]
    some = cost_inputs.some_rows(rows)
    assert 20 <= len(some) <= 22 and {"7", "61"} <= {row.id for row in some}
    assert some == cost_inputs.some_rows(rows)
    assert [int(row.id) for row in some] == sorted(int(row.id) for row in some)
    assert cost_inputs.some_rows(rows[:20]) == rows[:20]
