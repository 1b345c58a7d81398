"""The study with every objective on rows as its preference training."""

from __future__ import annotations

from typing import get_args

import pytest

from dynolab.errors import ConfigError
from dynolab.objectives.registry import RowConfig
from flows.parameters import load_parameters
from flows.study import STUDY, StudyParameters, resolved, study_steps
from tests.flows.analysed import Analysed
from tests.flows.lab import ROOT, SMALL
from tests.report.parsed import Parsed

OBJECTIVES = [config.model_fields["name"].default for config in get_args(RowConfig)]
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


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "sft"])
def test_the_built_in_study_takes_it(objective: str) -> None:
    change = f"preference.objective={{name: {objective}}}"
    file = ROOT / "deploy/studies/builtin.yaml"
    steps = study_steps(resolved(load_parameters(StudyParameters, file, [change])))
    trained = [
        step.config.objective.name
        for step in steps
        if step.name in ("preference", "resampled", "flat-world")
    ]
    assert trained == [objective] * 3


def test_two_trainings_of_one_objective_are_refused() -> None:
    same = r"preference\.objective\.name = 'sft': sft has the same objective"
    with pytest.raises(ConfigError, match=same):
        load_parameters(StudyParameters, SMALL, ["preference.objective={name: sft}"])
    extended = ["sft.objective={name: sft_extended}", "preference.objective={name: sft}"]
    load_parameters(StudyParameters, SMALL, extended)


CALLED = {
    "dpo": "DPO",
    "robust_dpo": "Robust DPO",
    "ipo": "IPO",
    "slic": "SLiC",
    "hinge": "Hinge",
    "simpo": "SimPO",
    "sppo": "SPPO",
}
FAST = ("ipo", "simpo")


@pytest.mark.parametrize(
    ("objective", "called"),
    [
        pytest.param(name, label, marks=[] if name in FAST else pytest.mark.study)
        for name, label in CALLED.items()
    ],
)
def test_it_runs_to_its_report(analysed: Analysed, objective: str, called: str) -> None:
    changes = [*PLAIN, *QUICK, f"preference.objective={{name: {objective}}}"]
    plan = STUDY.plan(load_parameters(StudyParameters, SMALL, changes), analysed.platform)
    report = analysed.run_plan(plan)["report"]
    summary = analysed.summary(report)
    stages = {verdict["id"].split("/")[0] for verdict in summary["verdicts"]}
    assert stages == {"sft", objective}
    assert "not measured" not in {verdict["outcome"] for verdict in summary["verdicts"]}
    words = Parsed(analysed.text(report, "report.html")).words
    assert set(CALLED.values()).intersection(words) == {called}
