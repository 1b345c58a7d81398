"""A study without SFT, and without analyses: what is set to null is not run, nor shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynolab.errors import ConfigError
from flows.parameters import parse_parameters
from flows.study import STUDY, StudyParameters, TrainParameters, study_steps
from tests.flows.in_process import InProcess

ANALYSES = ("audit", "forces", "kernel", "squeezing")
SMALL = """
data: {source: world, world: {entities: 20, train_pairs: 8, heldout_pairs: 4, corpus_rows: 32}}
base: {training: {steps: 2, batch_size: 4, engine: {kind: plain, ranks: 1}}}
sft: null
preference: {steps: 2, batch_size: 4, probe_every: 1, engine: {kind: plain, ranks: 1}}
probe: {answers: 1, answer_tokens: 2}
audit: null
kernel: null
forces: null
squeezing: null
"""

RECORDED = "sft: {record_steps: [0]}\npreference: {record_steps: [0]}\n"


def study(text: str = "", *changes: str) -> StudyParameters:
    return parse_parameters(StudyParameters, text, "text", changes)


@pytest.mark.parametrize("part", ANALYSES)
def test_an_analysis_that_is_null_is_left_out(part: str) -> None:
    steps = {step.name: step for step in study_steps(study(RECORDED, f"{part}=null"))}
    stages = {step.stage.name for step in steps.values()}
    assert part not in stages and stages >= set(ANALYSES) - {part}
    assert all(set(step.inputs.values()) <= steps.keys() for step in steps.values())


def test_a_training_without_recorded_steps_has_no_forces() -> None:
    steps = {step.name: step for step in study_steps(study(RECORDED, "sft.record_steps=[]"))}
    assert "sft-forces" not in steps and "preference-forces" in steps
    assert {"sft", "preference_forces"} <= steps["report"].inputs.keys()
    assert "sft_forces" not in steps["report"].inputs


def test_without_sft_everything_starts_from_the_base_model() -> None:
    found = study(f"{RECORDED}contrasts: [resampled, flat_world]\nledger: {{}}", "sft=null")
    steps = {step.name: step for step in study_steps(found)}
    assert not {name for name in steps if "sft" in name}
    assert all(set(step.inputs.values()) <= steps.keys() for step in steps.values())
    for name in ("preference", "audit", "ledger", "preference-forces", "resampled"):
        assert steps[name].inputs["model"] == "base", name
    assert steps["flat-world"].inputs["model"] == "base"
    assert steps["squeezing"].config.trainings == {"preference": "base", "resampled": "base"}


def test_what_needs_a_part_says_so() -> None:
    with pytest.raises(ConfigError, match=r"audit = None: preference_filter reads its ranking"):
        study("preference_filter: {by: ches, drop: 0.1}", "audit=null")
    with pytest.raises(ConfigError, match=r"until = 'sft': sft is null"):
        parse_parameters(TrainParameters, "until: sft", "text", ["sft=null"])


def test_the_shortest_study_runs_to_its_page(tmp_path: Path) -> None:
    lab = InProcess(tmp_path)
    results = lab.run_plan(STUDY.plan(study(SMALL), lab.platform))
    assert results.keys() == {"data", "base", "preference", "probe", "report"}
    page = lab.text(results["report"], "report.html")
    assert 'id="changes"' in page
    assert "dpo/chosen/change" in lab.summary(results["report"])["metrics"]
