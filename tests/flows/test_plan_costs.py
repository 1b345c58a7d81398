"""What plans say of memory, and what they refuse with which remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynolab.costs.machines import REACHED, StageCost, machine_named
from dynolab.data.rows import Example
from dynolab.errors import ConfigError
from dynolab.hub import names_may_stay, resolve_commit
from flows.costs import PlannedCosts
from flows.fitting import remedy
from flows.flow import Step
from flows.parameters.parse import load_parameters
from flows.plan_table import idle_gpus
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
        step.name: remedy(step, costs)
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


def fits(costs: PlannedCosts, step: Step, way: str) -> bool:
    """Whether a step fits with settings as a remedy names them."""
    named = (setting.split("=") for setting in way.removeprefix("set ").split(" and "))
    changes = {name.partition(".")[2]: yaml.safe_load(value) for name, value in named}
    plan = costs.changed(step, changes)
    changed = plan.step(step.name)
    cost = None if changed is None else plan.of(changed)
    return cost is not None and cost.lacks(costs.machine) is None


def test_each_remedy_of_what_does_not_fit_is_enough() -> None:
    fp32 = "preference.engine={ranks: 8, zero_stage: 0}"
    steps, costs = planned(LLAMA, "h100x8", fp32)
    step = next(step for step in steps if step.name == "preference")
    *ways, last = remedy(step, costs).split(", or ")
    assert last == "choose a larger machine"
    assert [way.partition(".")[2] for way in ways] == ["engine.zero_stage=3", "lora.rank=8"]
    assert all(fits(costs, step, way) for way in ways)
    assert not fits(costs, step, "set preference.engine.zero_stage=1")


def test_rows_are_shortened_no_more_than_needed() -> None:
    many = ("preference.batch_size=16", "preference.micro_batch_size=16")
    steps, costs = planned("hh_pythia410m.yaml", "rtx4090", *many)
    step = next(step for step in steps if step.name == "preference")
    ways = remedy(step, costs).split(", or ")
    assert ways[:2] == ["set preference.micro_batch_size=1", "set preference.max_length=256"]
    assert all(fits(costs, step, way) for way in ways[:2])
    assert not fits(costs, step, "set preference.max_length=512")


def test_sending_between_gpus_is_counted() -> None:
    """11.1 GB of weights, eight cards at 20 GB/s: far longer than computing takes."""
    steps, costs = planned("hh_pythia2.8b.yaml", "h100x8")
    slow = PlannedCosts(steps, replace(costs.machine, link=20e9 / REACHED["link"]))
    step = next(step for step in steps if step.name == "sft")
    fast_cost, cost = costs.of(step), slow.of(step)
    assert cost is not None and fast_cost is not None
    weight_bytes = 4 * cost.parameters
    moved = 3 * 7 / 8 * weight_bytes * 4500  # ZeRO-2: an all-reduce and an all-gather
    assert 3600 * cost.sending_hours == pytest.approx(moved / 20e9, rel=0.01)
    apart = [cost.hours - cost.sending_hours, fast_cost.hours - fast_cost.sending_hours]
    assert apart[0] == pytest.approx(apart[1]) and cost.sending_hours > 5 * fast_cost.sending_hours


def test_a_ledger_trains_again_without_the_references_scores() -> None:
    """And not at all where the training keeps its steps."""
    steps, costs = planned("builtin.yaml", "h100x8", "ledger={every: 1}")
    (preference,) = (step for step in steps if step.name == "preference")

    def cost_of(name: str, **changes: Any) -> StageCost:
        plan = costs.changed(preference, changes)
        step = plan.step(name)
        cost = None if step is None else plan.of(step)
        assert cost is not None
        return cost

    dpo, simpo = ({"keep_steps": False, "objective": {"name": name}} for name in ("dpo", "simpo"))
    assert cost_of("ledger", **dpo) == cost_of("ledger", **simpo)
    assert cost_of("preference", **dpo).tokens > cost_of("preference", **simpo).tokens
    assert cost_of("ledger", **dpo).sending_hours > cost_of("ledger").sending_hours == 0
    assert cost_of("preference").written > cost_of("preference", **dpo).written


def test_a_plan_says_which_gpus_stay_idle() -> None:
    steps, costs = planned("hh_pythia2.8b.yaml", "h100x8")
    taken = {step.name: costs.of(step) for step in steps}
    assert idle_gpus(taken, costs.machine) == [
        "7 of 8 GPUs stay idle in audit, probe, sft-forces, preference-forces."
    ]
    assert idle_gpus(taken, machine_named("h100")) == []


def test_copies_that_no_gpu_has_room_for_wait_in_main_memory() -> None:
    steps, costs = planned(LLAMA, "h100x8")
    cost = costs.of(next(step for step in steps if step.name == "preference-forces"))
    assert cost is not None
    copy = 4 * 8.03e9
    assert cost.rank_bytes < 2 * copy < 13 * copy < cost.host_bytes
    assert cost.lacks(machine_named("h100")) == (
        "needs 546.1 GB of main memory, and h100 has 256.0 GB"
    )


def test_a_probe_set_takes_passes_for_its_kinds_and_pairs() -> None:
    """Without a number of pairs for those of the data."""

    def hours(*changes: str) -> float:
        steps, costs = planned("hh_pythia410m.yaml", "h100", *changes)
        cost = costs.of(next(step for step in steps if step.name == "probe"))
        assert cost is not None
        return cost.hours

    two_kinds = "probe_set={kinds: [chosen, rejected]}"
    assert hours(two_kinds) < hours()
    few, many = (f"data.probe_pairs={pairs}" for pairs in (10, 100))
    assert hours(two_kinds, few) < hours(two_kinds, many)
    ten = "probe_set={kinds: [chosen, rejected], pairs: 10}"
    assert hours(ten, many) == hours(two_kinds, few)


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
