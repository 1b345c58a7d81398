"""Which stages a study has, in which order, and what each reads."""

from __future__ import annotations

import yaml

from flows.parameters import StudyParameters
from tasks.base import BASE
from tasks.data import DATA
from tasks.forces import FORCES
from tasks.probe import PROBE
from tasks.report import REPORT, ReportConfig
from tasks.runtime.chain import Step
from tasks.training import PREFERENCE, SFT


def study_steps(parameters: StudyParameters) -> list[Step]:
    """The study's stages in order, each with its settings and the stages that it reads."""
    report = ReportConfig(
        name=parameters.name,
        seed=parameters.seed,
        settings=yaml.safe_dump(parameters.model_dump(mode="json"), sort_keys=False),
    )
    builtin = parameters.base.source == "builtin"
    models = {"base": "base", "sft": "sft", "preference": "preference"}
    forces = {"sft_forces": "sft-forces", "preference_forces": "preference-forces"}
    return [
        Step("data", DATA, parameters.data),
        Step("base", BASE, parameters.base, {"data": "data"} if builtin else {}),
        Step("sft", SFT, parameters.sft, {"data": "data", "model": "base"}),
        Step("preference", PREFERENCE, parameters.preference, {"data": "data", "model": "sft"}),
        Step("probe", PROBE, parameters.probe, {"data": "data", **models}),
        Step("sft-forces", FORCES, parameters.forces, {"data": "data", "trained": "sft"}),
        Step("preference-forces", FORCES, parameters.forces,
             {"data": "data", "trained": "preference"}),
        Step("report", REPORT, report, {"data": "data", "probe": "probe", **models, **forces}),
    ]  # fmt: skip
