"""The audit as stages and as a flow: what they compute, filter, foresee and refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from dynolab.audit.audit import audit_pairs
from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, read_rows, read_value
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction
from dynolab.objectives import DPO, DPOConfig
from dynolab.results.audit import ChosenChange, FilteredPairs, Foresight, PairAudit
from dynolab.statistics import rank_correlation
from flows.audit import FLOW, AuditParameters, named_on_command_line
from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters
from flows.study.steps import study_steps
from models.language import folder_context, load_language_model, load_tokenizer
from tasks.audit import AUDIT, FILTER, FORESIGHT, AuditJob, FilterConfig, ForesightConfig
from tasks.runtime.work import StageResult
from tests.flows.analysed import Analysed
from tests.flows.in_process import step_names
from tests.flows.lab import SMALL


@pytest.fixture(scope="module")
def audited(analysed: Analysed) -> StageResult:
    """Of what the base model thinks of the pairs."""
    return analysed.run(AUDIT, AuditJob(), data=analysed.data, model=analysed.base)


def audits(lab: Analysed, result: StageResult) -> list[PairAudit]:
    return lab.rows(result, "audit.jsonl", PairAudit)


def test_the_stage_gives_the_library_s_rows(analysed: Analysed, audited: StageResult) -> None:
    folder, data = analysed.folder(analysed.base, "model"), analysed.folder(analysed.data)
    encoder = Encoder(load_tokenizer(folder), folder_context(folder), "error")
    train, held = (
        encoder.examples(read_rows(data / f"{split}.jsonl", Example))
        for split in ("train", "heldout")
    )
    policy = PolicyFunction(load_language_model(folder))
    expected = audit_pairs(policy, train, DPO(DPOConfig()), heldout=held)
    rows = audits(analysed, audited)
    assert [row.pair_id for row in rows] == [row.pair_id for row in expected]
    numbers = {"pair_id", "split", "band"} ^ set(PairAudit.model_fields)
    for row, expected_row in zip(rows, expected, strict=True):
        wanted = expected_row.model_dump(include=numbers)
        assert row.model_dump(include=numbers) == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    table = parquet.read_table(analysed.folder(audited) / "audit.parquet")
    assert table.to_pylist() == [row.model_dump() for row in rows]
    assert audited.metrics["data/rows_dropped"] == 0
    run = next(run for run in analysed.tracking.runs if run.name == "audit")
    table = json.loads(run.artifacts["tables/audit.json"])
    assert table["columns"] == list(PairAudit.model_fields)


def test_the_filter_drops_the_worst_and_keeps_the_rest_as_it_was(
    analysed: Analysed, audited: StageResult
) -> None:
    filters = FilterConfig(by="ches", drop=0.25)
    result = analysed.run(FILTER, filters, data=analysed.data, audit=audited)
    folder, data = analysed.folder(result), analysed.folder(analysed.data)
    dropped = read_value(folder / "filter.json", FilteredPairs).dropped
    train = [row for row in audits(analysed, audited) if row.split == "train"]
    assert dropped == tuple(row.pair_id for row in sorted(train, key=lambda row: -row.ches)[:3])
    kept = [row for row in read_rows(data / "train.jsonl", Example) if row.id not in dropped]
    assert list(read_rows(folder / "train.jsonl", Example)) == kept
    assert (folder / "probes.jsonl").read_bytes() == (data / "probes.jsonl").read_bytes()
    assert result.metrics == {"data/pairs_kept": 9.0, "data/pairs_filtered": 3.0}


def test_random_pairs_are_others_with_every_seed(analysed: Analysed) -> None:
    def dropped(seed: int) -> tuple[str, ...]:
        result = analysed.run(FILTER, FilterConfig(random=4, seed=seed), data=analysed.data)
        return read_value(analysed.folder(result) / "filter.json", FilteredPairs).dropped

    assert len(set(dropped(0))) == 4 and dropped(0) != dropped(1)
    with pytest.raises(ConfigError, match="draw fewer"):
        analysed.run(FILTER, FilterConfig(random=12), data=analysed.data)
    with pytest.raises(ConfigError, match=r"filter\.pairs"):
        FilterConfig(random=4, pairs=("a",))


def test_a_filter_that_weighs_keeps_all_pairs(analysed: Analysed, audited: StageResult) -> None:
    filters = FilterConfig(by="on_all", weigh=True)
    result = analysed.run(FILTER, filters, data=analysed.data, audit=audited)
    folder = analysed.folder(result)
    rows = {row.id: row for row in read_rows(folder / "train.jsonl", Example)}
    train = [row for row in audits(analysed, audited) if row.split == "train"]
    risks = np.array([-row.on_all for row in train])
    factors = np.exp(-risks / risks.std())
    expected = len(train) * factors / factors.sum()
    assert [rows[row.pair_id].weight for row in train] == pytest.approx(expected)
    lines = (folder / "weights.jsonl").read_text().splitlines()
    listed = {line["id"]: line["weight"] for line in map(json.loads, lines)}
    assert listed == {name: row.weight for name, row in rows.items()}
    assert result.metrics == {"data/pairs_kept": 12.0, "data/pairs_filtered": 0.0}


def test_foresight_measures_every_pair_that_was_trained_on_or_held_out(
    analysed: Analysed, audited: StageResult
) -> None:
    inputs = {"data": analysed.data, "audit": audited, "model": analysed.sft}
    result = analysed.run(FORESIGHT, ForesightConfig(), **inputs)
    changes = analysed.rows(result, "changes.jsonl", ChosenChange)
    assert [change.split for change in changes] == ["train"] * 12 + ["heldout"] * 6
    again = analysed.run(AUDIT, AuditJob(), data=analysed.data, model=analysed.sft)
    for change, before, after in zip(
        changes, audits(analysed, audited), audits(analysed, again), strict=True
    ):
        moved = after.chosen_logp - before.chosen_logp
        assert change.change == pytest.approx(moved, abs=1e-3)
    foreseen = analysed.rows(result, "foresight.jsonl", Foresight)
    assert {(row.split, row.pairs) for row in foreseen} == {("train", 12), ("heldout", 6)}
    assert result.metrics["foresight/train/from_all/spearman"] == foreseen[0].spearman
    dropping = analysed.run(FILTER, FilterConfig(drop=0.5), data=analysed.data, audit=audited)
    fewer = analysed.run(FORESIGHT, ForesightConfig(), **inputs, filter=dropping)
    foreseen = analysed.rows(fewer, "foresight.jsonl", Foresight)
    assert {(row.split, row.pairs) for row in foreseen} == {("train", 6), ("heldout", 6)}


def test_scores_from_elsewhere_enter_the_table(analysed: Analysed, tmp_path: Path) -> None:
    data = analysed.folder(analysed.data)
    rows = list(read_rows(data / "train.jsonl", Example))
    file = tmp_path / "theirs.parquet"
    scored = {"id": [row.id for row in rows], "score": np.arange(float(len(rows)))}
    parquet.write_table(pyarrow.table(scored), file)
    settings = {
        "model": {"result": "BASE"},
        "trained": {"result": "SFT"},
        "data_result": "DATA",
        "ranking": str(file),
    }
    planned = analysed.plan(FLOW, analysed.named(settings))
    assert step_names(planned) == ["ranking", "audit", "foresight", "audit-page"]
    results = analysed.run_plan(planned)
    assert ">theirs<" in analysed.text(results["audit-page"], "audit.html")
    foreseen = analysed.rows(results["foresight"], "foresight.jsonl", Foresight)
    (theirs,) = [row for row in foreseen if row.ranking == "theirs"]
    moved = analysed.rows(results["foresight"], "changes.jsonl", ChosenChange)[:12]
    falls = rank_correlation(np.arange(12.0), -np.array([row.change for row in moved]))
    assert theirs.spearman == pytest.approx(float(falls))
    # Scores of other pairs end the run before the audit.
    file.with_suffix(".jsonl").write_text('{"id": "nobody", "score": 1}\n')
    wrong = analysed.plan(
        FLOW, analysed.named(settings | {"ranking": str(tmp_path / "theirs.jsonl")})
    )
    with pytest.raises(ConfigError, match="ranking = 'nobody'"):
        analysed.run_plan(wrong)


def test_the_flow_s_stages_make_a_page(analysed: Analysed) -> None:
    settings = {"model": {"result": "BASE"}, "trained": {"result": "SFT"}, "data_result": "DATA"}
    planned = analysed.plan(FLOW, analysed.named(settings))
    assert step_names(planned) == ["audit", "foresight", "audit-page"]
    page = analysed.run_plan(planned)["audit-page"]
    assert analysed.to_run(planned) == set()
    text = analysed.text(page, "audit.html")
    assert "Predicted before training" in text
    assert "Pairs that lower the others" in text
    assert {"audit/pull_up", "foresight/train/from_all/spearman"} <= set(page.metrics)


def test_a_model_and_a_file_are_all_that_is_needed(analysed: Analysed, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(analysed.text(analysed.data, "train.jsonl"))
    model = str(analysed.folder(analysed.base, "model"))
    changes = named_on_command_line(model, file, None)
    planned = FLOW.plan(load_parameters(AuditParameters, None, changes), analysed.platform)
    assert step_names(planned) == ["data", "model", "audit", "audit-page"]
    results = analysed.run_plan(planned)
    assert [row.split for row in audits(analysed, results["audit"])] == ["train"] * 12
    page = analysed.text(results["audit-page"], "audit.html")
    assert "Predicted before training" not in page


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "model = 'nothing': give either result"),
    ({"model": {"result": "sft"}}, "the study has no such finished step"),
    ({"model": {"result": "DATA"}}, "of stage data holds no model"),
    ({"model": {"model": "/nowhere"}}, "model.model = '/nowhere'"),
    ({"model": {"result": "SFT"}, "data_result": "SFT"}, "of stage sft holds no train.jsonl"),
    ({"model": {"result": "SFT"}, "ranking": "/a.jsonl"}, "ranking = '/a.jsonl': is judged by"),
    (
        {
            "model": {"result": "BASE"},
            "trained": {"result": "SFT"},
            "data_result": "DATA",
            "ranking": "/nowhere.jsonl",
        },
        "ranking = '/nowhere.jsonl': no such file",
    ),
    (
        {"model": {"result": "SFT"}, "audit": {"objective": {"name": "sft"}}},
        "audit.objective = 'sft': pushes no answer down",
    ),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_cannot_be_audited_is_refused_first(
    analysed: Analysed, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        analysed.plan(FLOW, analysed.named(settings))


def study_inputs(*changes: str) -> dict[str, dict[str, str]]:
    steps = study_steps(load_parameters(StudyParameters, SMALL, changes))
    return {step.name: dict(step.inputs) for step in steps}


def test_a_study_audits_before_it_trains_and_filters_where_it_is_asked_to() -> None:
    plain = study_inputs()
    assert plain["audit"] == {"data": "data", "model": "sft"}
    assert plain["preference"] == {"data": "data", "model": "sft"}
    assert plain["foresight"]["model"] == "preference"
    assert "filter" not in plain
    filtered = study_inputs("preference_filter={by: ches, drop: 0.2}")
    assert filtered["preference"] == {"data": "filter", "model": "sft"}
    assert filtered["foresight"]["filter"] == "filter"
    assert list(filtered).index("filter") < list(filtered).index("preference")
