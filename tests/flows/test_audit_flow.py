"""The audit as stages and as a flow: what they compute, filter, foresee and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynolab.audit.audit import audit_pairs
from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, read_rows, read_value, write_rows
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction
from dynolab.objectives import DPO, DPOConfig
from dynolab.objectives.simpo import SimPOConfig
from dynolab.results.audit import ChosenChange, FilteredPairs, Foresight, PairAudit
from flows.audit import AuditParameters, audit_steps, named_on_command_line, resolved_audit
from flows.parameters import load_parameters, validated
from flows.study import StudyParameters, study_steps
from models.language import folder_context, load_language_model, load_tokenizer
from tasks.audit import AUDIT, AuditJob
from tasks.filter import FILTER, FilterConfig
from tasks.foresight import FORESIGHT, ForesightConfig
from tasks.runtime.pipeline import plan
from tasks.runtime.stage import plan_key
from tasks.runtime.work import StageResult
from tests.flows.analysed import Analysed
from tests.flows.lab import SMALL


@pytest.fixture(scope="module")
def lab(analysed: Analysed) -> Analysed:
    return analysed


@pytest.fixture(scope="module")
def audited(lab: Analysed) -> StageResult:
    """Of what the base model thinks of the pairs."""
    return lab.run(AUDIT, AuditJob(), data=lab.data, model=lab.base)


def rows(lab: Analysed, result: StageResult) -> list[PairAudit]:
    return list(read_rows(lab.folder(result) / "audit.jsonl", PairAudit))


def test_the_stage_gives_the_library_s_rows(lab: Analysed, audited: StageResult) -> None:
    folder, data = lab.folder(lab.base, "model"), lab.folder(lab.data)
    encoder = Encoder(load_tokenizer(folder), folder_context(folder), "error")
    train, held = (
        encoder.examples(read_rows(data / f"{split}.jsonl", Example))
        for split in ("train", "heldout")
    )
    policy = PolicyFunction(load_language_model(folder))
    expected = audit_pairs(policy, train, DPO(DPOConfig()), heldout=held)
    found = rows(lab, audited)
    assert [row.pair_id for row in found] == [row.pair_id for row in expected]
    numbers = {"pair_id", "split"} ^ set(PairAudit.model_fields)
    for one, other in zip(found, expected, strict=True):
        wanted = other.model_dump(include=numbers)
        assert one.model_dump(include=numbers) == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    assert audited.metrics["data/rows_dropped"] == 0
    run = next(run for run in lab.tracking.runs if run.name == "audit")
    table = json.loads(run.artifacts["tables/audit.json"])
    assert table["columns"] == list(PairAudit.model_fields)


def test_only_what_changes_the_numbers_changes_the_key(lab: Analysed) -> None:
    inputs = {"data": lab.data, "model": lab.base}
    key = plan_key(AUDIT, AuditJob(), inputs)
    assert plan_key(AUDIT, AuditJob(batch_tokens=64), inputs) == key
    assert plan_key(AUDIT, AuditJob(objective=SimPOConfig()), inputs) != key
    assert plan_key(AUDIT, AuditJob(pairs=3), inputs) != key


def test_the_filter_drops_the_worst_and_keeps_the_rest_as_it_was(
    lab: Analysed, audited: StageResult
) -> None:
    result = lab.run(FILTER, FilterConfig(by="ches", drop=0.25), data=lab.data, audit=audited)
    folder, data = lab.folder(result), lab.folder(lab.data)
    facts = read_value(folder / "filter.json", FilteredPairs)
    own = sorted(
        (row for row in rows(lab, audited) if row.split == "train"), key=lambda row: -row.ches
    )
    assert facts.dropped == tuple(row.pair_id for row in own[:3])
    before = [
        row for row in read_rows(data / "train.jsonl", Example) if row.id not in facts.dropped
    ]
    assert list(read_rows(folder / "train.jsonl", Example)) == before
    assert (folder / "probes.jsonl").read_bytes() == (data / "probes.jsonl").read_bytes()
    assert result.metrics == {"data/pairs_kept": 9.0, "data/pairs_filtered": 3.0}


def test_foresight_measures_every_pair_that_was_trained_on_or_held_out(
    lab: Analysed, audited: StageResult
) -> None:
    inputs = {"data": lab.data, "audit": audited, "model": lab.sft}
    result = lab.run(FORESIGHT, ForesightConfig(), **inputs)
    changes = list(read_rows(lab.folder(result) / "changes.jsonl", ChosenChange))
    assert [change.split for change in changes] == ["train"] * 12 + ["heldout"] * 6
    again = lab.run(AUDIT, AuditJob(), data=lab.data, model=lab.sft)
    for change, before, after in zip(changes, rows(lab, audited), rows(lab, again), strict=True):
        moved = after.chosen_logp - before.chosen_logp
        assert change.change == pytest.approx(moved, abs=1e-3)
    found = list(read_rows(lab.folder(result) / "foresight.jsonl", Foresight))
    assert {(one.split, one.pairs) for one in found} == {("train", 12), ("heldout", 6)}
    assert result.metrics["foresight/train/from_all/spearman"] == found[0].spearman
    dropping = lab.run(FILTER, FilterConfig(drop=0.5), data=lab.data, audit=audited)
    fewer = lab.run(FORESIGHT, ForesightConfig(), **inputs, filter=dropping)
    found = list(read_rows(lab.folder(fewer) / "foresight.jsonl", Foresight))
    assert {(one.split, one.pairs) for one in found} == {("train", 6), ("heldout", 6)}


def short(result: StageResult) -> str:
    return f"{result.stage}/{result.key[:12]}"


def test_the_flow_s_stages_make_a_page(lab: Analysed) -> None:
    known, given = resolved_audit(
        validated(
            AuditParameters,
            {
                "model": {"result": short(lab.base)},
                "trained": {"result": short(lab.sft)},
                "data_result": short(lab.data),
            },
        ),
        lab.platform,
    )
    steps = audit_steps(known, given)
    assert [step.name for step in steps] == ["audit", "foresight", "audit-page"]
    results = dict(given)
    for step in steps:
        results[step.name] = lab.run(step.stage, step.config, step.name, **step.sources(results))
    assert {one.state for one in plan(steps, lab.platform, given)} == {"cached"}
    page = (lab.folder(results["audit-page"]) / "audit.html").read_text()
    assert "Foreseen before training" in page
    assert "Worst by the pair’s force on its own" in page
    metrics = results["audit-page"].metrics
    assert {"audit/pull_up", "foresight/train/from_all/spearman"} <= set(metrics)


def test_a_model_and_a_file_are_all_that_is_needed(lab: Analysed, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    write_rows(file, read_rows(lab.folder(lab.data) / "train.jsonl", Example))
    changes = named_on_command_line(str(lab.folder(lab.base, "model")), file, None)
    parameters = load_parameters(AuditParameters, None, changes)
    known, given = resolved_audit(parameters, lab.platform)
    steps = audit_steps(known, given)
    assert [step.name for step in steps] == ["data", "model", "audit", "audit-page"]
    results = dict(given)
    for step in steps:
        results[step.name] = lab.run(step.stage, step.config, step.name, **step.sources(results))
    found = rows(lab, results["audit"])
    assert [row.split for row in found] == ["train"] * 12
    page = (lab.folder(results["audit-page"]) / "audit.html").read_text()
    assert "Foreseen before training" not in page


REFUSED = [
    ({}, "model = 'nothing': give either result"),
    ({"model": {"result": "sft"}}, "is no finished step of the study"),
    ({"model": {"result": "DATA"}}, "of stage data holds no model"),
    ({"model": {"model": "/nowhere"}}, "model.model = '/nowhere'"),
    ({"model": {"result": "SFT"}, "data_result": "SFT"}, "of stage sft holds no train.jsonl"),
    (
        {"model": {"result": "SFT"}, "audit": {"objective": {"name": "sft"}}},
        "audit.objective = 'sft': pushes no answer down",
    ),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_cannot_be_audited_is_refused_first(lab: Analysed, settings, message: str) -> None:  # type: ignore[no-untyped-def]
    text = json.dumps(settings).replace("DATA", short(lab.data)).replace("SFT", short(lab.sft))
    with pytest.raises(ConfigError) as refused:
        resolved_audit(validated(AuditParameters, json.loads(text)), lab.platform)
    assert message in str(refused.value)


def test_pairs_without_a_rejected_answer_are_refused(lab: Analysed, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    write_rows(file, [Example(id=f"r{n}", prompt=f"what {n} ?", chosen=f"{n}") for n in range(4)])
    changes = named_on_command_line(str(lab.folder(lab.base, "model")), file, None)
    known, given = resolved_audit(load_parameters(AuditParameters, None, changes), lab.platform)
    data, model, audit, _ = audit_steps(known, given)
    results = {step.name: lab.run(step.stage, step.config) for step in (data, model)}
    with pytest.raises(ConfigError, match="objective audit needs a rejected answer in every row"):
        lab.run(audit.stage, audit.config, **audit.sources(results))


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


def test_a_study_whose_loss_is_on_no_pairs_has_no_audit_and_nothing_to_filter_by() -> None:
    extended = "preference.objective={name: sft_extended}"
    assert not {"audit", "foresight"} & set(study_inputs(extended))
    with pytest.raises(ConfigError, match="needs a loss on pairs, and sft_extended is none"):
        study_inputs(extended, "preference_filter={by: force}")
