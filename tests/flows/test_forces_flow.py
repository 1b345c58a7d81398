"""The force analysis as a flow: what its stages compute, cache and refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, ProbeRow, read_value, write_rows
from dynolab.data.sources.load import DataConfig
from dynolab.errors import ConfigError
from dynolab.forces import ForceMap, PolicyFunction, force_map
from dynolab.forces.map.analysis import recorded_examples
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.objectives import DPO, DPOConfig, SFTConfig
from dynolab.results.forces import KernelFindings, PairForce
from dynolab.training.reference import score_reference
from flows.flow import Plan
from flows.forces import FLOW, ForcesParameters
from models.language import folder_context, load_language_model, load_tokenizer
from tasks.data import DATA
from tasks.force_map import ANALYSIS, AnalysisJob
from tasks.kernel import KERNEL, KernelJob
from tasks.runtime.stage import plan_key, run_stage
from tasks.shared.selection import SelectionConfig, observed_answers, observed_rows, updating_rows
from tests.flows.analysed import Analysed
from tests.flows.in_process import short, step_names

SMALL = {"observed_pairs": 2, "updating_pairs": 3}
SMALLER = {"observed_pairs": 1, "updating_pairs": 2}


def test_the_stage_gives_the_library_s_map(analysed: Analysed) -> None:
    """DPO's forces at the trained model, the base as reference."""
    inputs = {"data": analysed.data, "model": analysed.sft, "reference": analysed.base}
    job = AnalysisJob(objective=DPOConfig(), learning_rate=0.1, **SMALL)
    found = ForceMap.open(analysed.folder(analysed.run(ANALYSIS, job, **inputs), "map")).force

    folder, data = analysed.folder(analysed.sft, "model"), analysed.folder(analysed.data)
    config = SelectionConfig(**SMALL)
    encoder = Encoder(load_tokenizer(folder), folder_context(folder), "error")
    observed = [answer for _, answer in observed_answers(data, config, encoder)]
    pairs = encoder.examples(updating_rows(data, config))
    reference = ResponseLogits(load_language_model(analysed.folder(analysed.base, "model")))
    scored = score_reference(reference, pairs, (0, 1), pad_id=0, batch=1)
    policy, updating = PolicyFunction(load_language_model(folder)), recorded_examples(pairs, scored)
    expected = force_map(policy, observed, updating, DPO(DPOConfig()), update=0.1).force
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)


@pytest.mark.ranks
def test_ranks_share_the_map_out(analysed: Analysed) -> None:
    alone = AnalysisJob(objective=SFTConfig(), step=3, **SMALL)
    inputs = {"data": analysed.data, "model": analysed.sft}
    one = ForceMap.open(analysed.folder(analysed.run(ANALYSIS, alone, **inputs), "map"))
    shared = alone.model_copy(update={"ranks": 2})
    again = run_stage(ANALYSIS, shared, inputs, analysed.platform, fresh=True)
    two = ForceMap.open(analysed.folder(again, "map"))
    assert analysed.platform.store.manifest(again.address, again.digest).world_size == 2
    assert np.linalg.norm(two.force - one.force) < 1e-6 * np.linalg.norm(one.force)


def test_what_does_not_change_the_numbers_does_not_change_the_key(analysed: Analysed) -> None:
    inputs = {"data": analysed.data, "model": analysed.sft}
    config = AnalysisJob(**SMALL)
    key = plan_key(ANALYSIS, config, inputs)
    same = {"memory_bytes": 2**24, "batch_tokens": 64, "reference_batch": 1, "ranks": 2}
    assert plan_key(ANALYSIS, config.model_copy(update=same), inputs) == key
    assert plan_key(ANALYSIS, config.model_copy(update={"learning_rate": 0.5}), inputs) != key
    assert plan_key(ANALYSIS, config, inputs | {"reference": analysed.base}) != key


def test_the_kernel_stage_compares_checkpoints_and_recorded_steps(analysed: Analysed) -> None:
    config = KernelJob(
        labels=("base", "start", "end"), steps={"start": 1, "end": None}, rank=2, probes=4, **SMALL
    )
    models = {"model_base": analysed.base, "model_start": analysed.sft, "model_end": analysed.sft}
    result = analysed.run(KERNEL, config, data=analysed.data, **models)
    found = read_value(analysed.folder(result) / "kernel.json", KernelFindings)
    pairs = [(agreement.first, agreement.second) for agreement in found.agreements]
    assert pairs == [("base", "start"), ("base", "end"), ("start", "end")]
    assert result.metrics["kernel/rank_correlation"] == min(o.correlation for o in found.agreements)
    sizes = [json.loads(line) for line in (analysed.folder(result) / "sizes.jsonl").open()]
    assert len(sizes) == 3 * 4 * 3
    assert all(0 <= row["centred_error"] < row["centred"] for row in sizes)


def test_the_flow_s_stages_make_a_page_and_tell_mlflow(analysed: Analysed) -> None:
    checkpoints = {"base": {"result": "BASE"}, "sft": {"result": analysed.sft.address}}
    planned = planned_forces(analysed, checkpoints=checkpoints)
    assert step_names(planned) == ["analysis-base", "analysis-sft", "kernel", "force-page"]
    assert "force-page" in analysed.to_run(planned)
    page = analysed.run_plan(planned)["force-page"]
    assert analysed.to_run(planned) == set()
    runs = {run.name: run for run in analysed.tracking.runs}
    table = json.loads(runs["analysis-sft"].artifacts["tables/totals.json"])
    assert set(PairForce.model_fields) == set(table["columns"])
    assert "forces/manifest.json" in runs["analysis-sft"].artifacts
    assert "report/forces.html" in runs["force-page"].artifacts
    assert "kernel/rank_correlation" in page.metrics
    values = {name for _, logged in runs["analysis-sft"].values for name in logged}
    assert {"force/chosen/from_rejected", "force/last_layer/cosine"} <= values


def planned_forces(lab: Analysed, **changes: Any) -> Plan:
    settings = {
        "checkpoints": {"sft": {"result": "SFT"}},
        "data_result": "DATA",
        "analysis": {"objective": {"name": "dpo"}, **SMALLER},
        "kernel": {"rank": 2, "probes": 2, **SMALLER},
    }
    return lab.plan(FLOW, lab.named(settings | changes))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"checkpoints": {"sft": {"result": "sft/0123456789ab"}}}, "is not in the store"),
    ({"checkpoints": {"sft": {"result": "file:///nowhere/stages/sft"}}}, "is not a result of the"),
    ({"checkpoints": {"sft": {"result": "sft"}}}, "the study has no such finished step"),
    ({"checkpoints": {"sft": {"result": "DATA"}}}, "of stage data holds no model"),
    ({"checkpoints": {"sft": {"result": "SFT", "step": 2}}}, "recorded steps: 1, 3"),
    ({"checkpoints": {"sft": {"model": "a/b", "step": 2}}}, "only a training's result has steps"),
    ({"checkpoints": {"sft": {"model": "a/b", "result": "x"}}}, "give either result"),
    ({"checkpoints": {"sft": {"model": "/nowhere"}}}, "checkpoints.sft.model = '/nowhere'"),
    ({"reference": "base"}, "choose one of sft"),
    ({"data_result": "SFT"}, "of stage sft holds no train.jsonl"),
    ({"data_result": "DATA", "data": {}}, "give data or data_result, not both"),
    ({"analysis": {"kinds": ["chosen", "chosne"]}}, "analysis.kinds = 'chosne': the data's probe"),
    ({"study": "nowhere.yaml"}, "config = 'nowhere.yaml'"),
    ({"checkpoints": {"Sft": {"result": "DATA"}}}, "checkpoints.Sft"),
    ({"checkpoints": {}}, "checkpoints = {}"),
    ({"analysis": {"objective": {"name": "grpo"}}}, "analysis.objective.name = 'grpo': choose one"),
    ({"analysis": {"ranks": 0}}, "analysis.ranks = 0: Input should be greater"),
    ({"kernel": {"threshold": 2}}, "kernel.threshold = 2: Input should be less"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_cannot_be_analysed_is_refused_first(
    analysed: Analysed, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        planned_forces(analysed, **changes)


def test_pairs_without_rejected_answers_are_refused_for_dpo(
    analysed: Analysed, tmp_path: Path
) -> None:
    rows = [Example(id=f"r{n}", prompt=f"what is {n} ?", chosen=f"it is {n} .") for n in range(8)]
    write_rows(tmp_path / "pairs.jsonl", rows)
    config = DataConfig(source="file", path=str(tmp_path / "pairs.jsonl"), heldout_rows=2)
    bare = analysed.run(DATA, config)
    changes = {"data_result": short(bare), "analysis": {"kinds": ["chosen"]}}
    with pytest.raises(ConfigError, match="objective dpo needs a rejected answer in every row"):
        planned_forces(analysed, **changes)
    sft = changes | {"analysis": {"kinds": ["chosen"], "objective": {"name": "sft"}}}
    planned = planned_forces(analysed, **sft)
    assert isinstance(planned.parameters, ForcesParameters)
    assert not planned.parameters.needs_reference
    assert "force-page" in step_names(planned)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Four training and two held-out pairs; the held-out ones have known ids, too."""
    pairs = [Example(id=f"q{n}", prompt="?", chosen=" a", rejected=" b") for n in range(4)]
    write_rows(tmp_path / "train.jsonl", pairs)
    probes = [
        ProbeRow(pair_id=f"q{n}", split=split, kind=kind, prompt="?", response=" a", made_by="x")
        for split, count in (("train", 3), ("heldout", 2))
        for n in range(count)
        for kind in ("chosen", "rejected")
    ]
    write_rows(tmp_path / "probes.jsonl", probes)
    return tmp_path


def test_the_first_pairs_are_taken_where_none_is_named(rows: Path) -> None:
    config = SelectionConfig(observed_pairs=1, updating_pairs=2)
    assert {(row.split, row.pair_id) for row in observed_rows(rows, config)} == {
        ("train", "q0"),
        ("heldout", "q0"),
    }
    assert [row.id for row in updating_rows(rows, config)] == ["q0", "q1"]


def test_named_pairs_are_observed_and_update(rows: Path) -> None:
    config, named = SelectionConfig(), ("q1",)
    observed = [(row.split, row.pair_id, row.kind) for row in observed_rows(rows, config, named)]
    assert observed == [("train", "q1", "chosen"), ("train", "q1", "rejected")]
    assert [row.id for row in updating_rows(rows, config, DPOConfig(), named)] == ["q1"]


def test_pairs_that_are_not_there_are_refused(rows: Path) -> None:
    with pytest.raises(ConfigError, match=r"pair_ids = 'q3': none of them is watched.*q0, q1"):
        observed_rows(rows, SelectionConfig(), ("q3",))
    with pytest.raises(ConfigError, match=r"pair_ids = 'q9': is not the id of a training pair"):
        updating_rows(rows, SelectionConfig(), pair_ids=("q9",))
