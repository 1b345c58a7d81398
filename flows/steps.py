"""Which stages a study has, in which order, and what each reads."""

from __future__ import annotations

import yaml

from dynolab.rollouts.sample import SampleConfig
from dynolab.training.config import TrainConfig
from flows.parameters import StudyParameters
from tasks.base import BASE
from tasks.data import DATA
from tasks.forces import FORCES
from tasks.kernel import KERNEL, KernelJob
from tasks.onpolicy import ONPOLICY
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
    models = {"base": "base", "sft": "sft", "preference": "preference"}
    forces = {"sft_forces": "sft-forces", "preference_forces": "preference-forces"}
    kernel = KernelJob(**dict(parameters.kernel), labels=tuple(models))
    contrasts = [_CONTRASTS[name](parameters) for name in parameters.contrasts]
    contrasted = {f"contrast_{steps[-1].name}": steps[-1].name for steps in contrasts}
    return [
        Step("data", DATA, parameters.data),
        _base_step("base", parameters, data="data"),
        Step("sft", SFT, parameters.sft, {"data": "data", "model": "base"}),
        Step("preference", PREFERENCE, parameters.preference, {"data": "data", "model": "sft"}),
        Step("probe", PROBE, parameters.probe, {"data": "data", **models}),
        Step("sft-forces", FORCES, parameters.forces, {"data": "data", "trained": "sft"}),
        Step("preference-forces", FORCES, parameters.forces,
             {"data": "data", "trained": "preference"}),
        Step("kernel", KERNEL, kernel,
             {"data": "data", **{f"model_{label}": label for label in models}}),
        *(step for steps in contrasts for step in steps),
        Step("report", REPORT, report,
             {"data": "data", "probe": "probe", "kernel": "kernel", **models, **forces,
              **contrasted}),
    ]  # fmt: skip


def _base_step(name: str, parameters: StudyParameters, *, data: str) -> Step:
    builtin = parameters.base.source == "builtin"
    return Step(name, BASE, parameters.base, {"data": data} if builtin else {})


def _on_policy(parameters: StudyParameters) -> list[Step]:
    """Preference training whose rejected answers the policy before it says itself."""
    sampling = SampleConfig(seed=parameters.seed)
    return [
        Step("on-policy-data", ONPOLICY, sampling, {"data": "data", "model": "sft"}),
        Step("on-policy", PREFERENCE, _unrecorded(parameters.preference),
             {"data": "on-policy-data", "model": "sft"}),
    ]  # fmt: skip


def _flat_world(parameters: StudyParameters) -> list[Step]:
    """The whole way through a world whose answers prefer no style: nothing is there to squeeze."""
    flat = parameters.data.world.model_copy(update={"zipf": 0.0})
    data = parameters.data.model_copy(update={"world": flat})
    return [
        Step("flat-data", DATA, data),
        _base_step("flat-base", parameters, data="flat-data"),
        Step("flat-sft", SFT, _unrecorded(parameters.sft),
             {"data": "flat-data", "model": "flat-base"}),
        Step("flat-world", PREFERENCE, _unrecorded(parameters.preference),
             {"data": "flat-data", "model": "flat-sft"}),
    ]  # fmt: skip


def _unrecorded(config: TrainConfig) -> TrainConfig:
    return config.model_copy(update={"record_steps": ()})


_CONTRASTS = {"on_policy": _on_policy, "flat_world": _flat_world}
