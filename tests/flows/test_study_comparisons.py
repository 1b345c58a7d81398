"""A study's report shows what comparisons found once they have run, and how to run them before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dynolab.report.inputs.study import Compared, read_compared
from dynolab.rollouts.rewards import ALLOWED
from flows.mitigation import mitigation_steps
from flows.parameters import validated
from flows.study import StudyParameters, plan
from tests.flows.analysed import Analysed
from tests.flows.test_mitigation_flow import SMALL, parameters, run_all

ARMS: dict[str, Any] = {"dpo": {}, "dose": {"objective": {"name": "dpo", "negative_dose": 0.0}}}


def test_finished_comparisons_are_the_report_s_inputs(
    analysed: Analysed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOWED, "tests.training.rewards")
    files = {name: tmp_path / f"{name}.yaml" for name in ("mitigation", "reproduction")}
    settings = SMALL | {"arms": ARMS, "seeds": [7]}
    files["mitigation"].write_text(yaml.safe_dump(settings, sort_keys=False))
    shared = {name: value for name, value in settings.items() if name != "arms"}
    files["reproduction"].write_text(yaml.safe_dump(shared, sort_keys=False))
    study = validated(
        StudyParameters, {"comparisons": {name: str(file) for name, file in files.items()}}
    )
    report, found = _planned(study, analysed)
    assert found == {} and set(report.config.missing) == set(files)
    assert report.config.missing["reproduction"].startswith("dynolab reproduce --config ")

    steps = mitigation_steps(parameters(arms=ARMS, seeds=[7]))
    results = run_all(analysed, steps)
    report, found = _planned(study, analysed)
    assert found == {"mitigation": results["mitigation-page"].model_copy(update={"cached": True})}
    assert report.inputs["mitigation"] == "mitigation"
    assert set(report.config.missing) == {"reproduction"}

    read = read_compared(analysed.folder(found["mitigation"]), None, missing={})
    assert read.remedies is not None and list(read.remedies.arms) == list(ARMS)
    assert read.findings == ()


def test_a_study_that_names_none_has_none(analysed: Analysed) -> None:
    report, found = _planned(StudyParameters(), analysed)
    assert found == {} and report.config.missing == {}
    assert read_compared(None, None, missing={}) == Compared()


def _planned(study: StudyParameters, analysed: Analysed) -> Any:
    planned = plan(study, analysed.platform)
    steps, found = planned.steps, planned.existing
    return steps[-1], found
