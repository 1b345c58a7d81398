"""Studies with every objective, without SFT, and without analyses."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynolab.errors import ConfigError
from dynolab.objectives.registry import PAIR_OBJECTIVES, RowConfig, names_of
from dynolab.report.style import objective_name
from flows.parameters.parse import load_parameters, parse_parameters
from flows.study.flow import PREFERENCE_OBJECTIVES, STUDY, TrainParameters
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from tests.flows.analysed import Analysed
from tests.flows.in_process import InProcess
from tests.flows.lab import ROOT, SMALL as SMALL_FILE
from tests.report.parsed import Parsed

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


PLAIN = [f"{stage}.engine={{kind: plain, ranks: 1}}" for stage in ("sft", "preference")]
QUICK = [
    "base.training.steps=2",
    "sft.steps=2",
    "preference.steps=2",
    "kernel.rank=1",
    "kernel.probes=2",
    "data.probe_pairs=3",
    "audit.heldout_pairs=2",
    "squeezing.pairs=2",
    "forces.pairs=1",
]


ON_LABELS = "kto"


@pytest.mark.parametrize("objective", sorted({*names_of(RowConfig)} - {"sft", ON_LABELS}))
def test_the_built_in_study_takes_it(objective: str) -> None:
    loss = ", loss: tests.objectives.losses.margin" if objective == "custom" else ""
    change = f"preference.objective={{name: {objective}{loss}}}"
    file = ROOT / "deploy/studies/builtin.yaml"
    changes = [change, "contrasts=[resampled, flat_world]"]
    steps = study_steps(resolved(load_parameters(StudyParameters, file, changes)))
    trained = [
        step.config.objective.name
        for step in steps
        if step.name in ("preference", "resampled", "flat-world")
    ]
    assert trained == [objective] * 3


def test_rows_with_labels_and_their_objective_belong_together(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}")
    data = f"data={{source: file, path: {rows}, format: unpaired}}"
    objective = f"preference.objective={{name: {ON_LABELS}}}"
    base = ["base={source: gpt2}"]
    for changes in ([data, *base], [objective]):
        with pytest.raises(ConfigError, match=r"data\.format"):
            load_parameters(StudyParameters, SMALL_FILE, changes)
    load_parameters(StudyParameters, SMALL_FILE, [data, objective, *base])


def test_two_trainings_of_one_objective_are_refused() -> None:
    same = r"preference\.objective\.name = 'sft': sft has the same objective"
    with pytest.raises(ConfigError, match=same):
        load_parameters(StudyParameters, SMALL_FILE, ["preference.objective={name: sft}"])
    extended = ["sft.objective={name: sft_extended}", "preference.objective={name: sft}"]
    load_parameters(StudyParameters, SMALL_FILE, extended)


CALLED = {name: objective_name(name) for name in PREFERENCE_OBJECTIVES if name in PAIR_OBJECTIVES}
FAST = "simpo"


@pytest.mark.parametrize(
    ("objective", "called"),
    [
        pytest.param(name, label, marks=[] if name == FAST else pytest.mark.study)
        for name, label in CALLED.items()
    ],
)
def test_it_runs_to_its_report(analysed: Analysed, objective: str, called: str) -> None:
    changes = [*PLAIN, *QUICK, f"preference.objective={{name: {objective}}}"]
    plan = STUDY.plan(load_parameters(StudyParameters, SMALL_FILE, changes), analysed.platform)
    report = analysed.run_plan(plan)["report"]
    summary = analysed.summary(report)
    stages = {verdict["id"].split("/")[0] for verdict in summary["verdicts"]}
    assert stages == {"sft", objective}
    assert "not measured" not in {verdict["outcome"] for verdict in summary["verdicts"]}
    words = Parsed(analysed.text(report, "report.html")).words
    assert set(CALLED.values()).intersection(words) == {called}
