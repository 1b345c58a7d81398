"""The papers' trainings as a flow: what it measures, shares, and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dynolab.errors import ConfigError
from experiments.reproduce.flow import FLOW, ReproduceParameters
from flows import mitigation
from flows.parameters.validation import validated
from flows.study.flow import STUDY
from tasks.report import ReportConfig
from tests.flows.analysed import Analysed
from tests.flows.test_mitigation_flow import SHARED, SMALL


def test_every_finding_of_the_world_is_measured_in_trainings_that_remedies_share(
    analysed: Analysed,
) -> None:
    page = analysed.run_plan(analysed.plan(FLOW, SHARED))["reproduction-page"]
    outcomes = {verdict["outcome"] for verdict in analysed.summary(page)["verdicts"]}
    assert "not measured" not in outcomes
    assert (analysed.folder(page) / "reproduction.html").exists()
    assert page.metrics["sft/chosen"] > 0
    remedies = analysed.states(analysed.plan(mitigation.FLOW, SMALL))
    assert {step for step, state in remedies.items() if state == "cached"} >= {
        "sft-0",
        "sft-extended-1",
        "sft-extended-half-0",
        "dpo-0",
        "extended-1",
        "resampled-0",
        "on-policy-0",
        "on-policy-ipo-1",
        "dpo-1-said",
    }


def test_claims_on_sft_need_it() -> None:
    with pytest.raises(ConfigError, match="sft = None: claims on SFT need it"):
        validated(ReproduceParameters, {"sft": None})


def test_a_study_names_the_command_that_has_not_run(analysed: Analysed, tmp_path: Path) -> None:
    file = tmp_path / "reproduction.yaml"
    file.write_text(yaml.safe_dump(SHARED | {"seeds": [7]}, sort_keys=False))
    plan = analysed.plan(STUDY, {"comparisons": {"reproduction": str(file)}})
    report = plan.steps[-1].config
    assert isinstance(report, ReportConfig)
    assert report.missing["reproduction"].startswith("reproduce ")
