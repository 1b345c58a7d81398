"""Which stages a study has, in which order, and what each reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import yaml

from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.rollouts.sample import SampleConfig
from dynolab.training.config import TrainConfig
from flows.parameters import StudyParameters
from flows.probes_steps import probe_set_step
from tasks.audit import AUDIT, AuditJob
from tasks.base import BASE
from tasks.data import DATA
from tasks.filter import FILTER
from tasks.forces import FORCES
from tasks.foresight import FORESIGHT, ForesightConfig
from tasks.kernel import KERNEL, KernelJob
from tasks.probe import PROBE
from tasks.report import REPORT, ReportConfig
from tasks.resampled import RESAMPLED
from tasks.runtime.chain import Step
from tasks.squeezing import SQUEEZING, SqueezingJob
from tasks.training import PREFERENCE, SFT


def study_steps(
    parameters: StudyParameters,
    compared: Collection[str] = (),
    missing: Mapping[str, str] | None = None,
) -> list[Step]:
    """The study's stages in order, each with its settings and the stages that it reads.

    `compared` are names of comparisons whose results the report reads without a step, `missing`
    the commands of those that have not run.
    """
    report = ReportConfig(
        name=parameters.name,
        seed=parameters.seed,
        settings=yaml.safe_dump(parameters.model_dump(mode="json"), sort_keys=False),
        objective=parameters.preference.objective,
        missing=dict(missing or {}),
    )
    models = {"base": "base", "sft": "sft", "preference": "preference"}
    forces = {"sft_forces": "sft-forces", "preference_forces": "preference-forces"}
    kernel = KernelJob(**dict(parameters.kernel), labels=tuple(models))
    contrasts = [_CONTRASTS[name](parameters) for name in parameters.contrasts]
    contrasted = {f"contrast_{steps[-1].name}": steps[-1].name for steps in contrasts}
    audits, foresights = _audit(parameters)
    trained_on = "filter" if parameters.preference_filter else "data"
    audited = {step.name: step.name for step in (*audits, *foresights) if step.name != "filter"}
    return [
        *_rows_and_base(parameters),
        Step("sft", SFT, parameters.sft, {"data": "data", "model": "base"}),
        *audits,
        Step("preference", PREFERENCE, parameters.preference, {"data": trained_on, "model": "sft"}),
        *foresights,
        Step("probe", PROBE, parameters.probe, {"data": "data", **models}),
        Step("sft-forces", FORCES, parameters.forces, {"data": "data", "trained": "sft"}),
        Step(
            "preference-forces",
            FORCES,
            parameters.forces,
            {"data": "data", "trained": "preference"},
        ),
        Step(
            "kernel",
            KERNEL,
            kernel,
            {"data": "data", **{f"model_{label}": label for label in models}},
        ),
        *(step for steps in contrasts for step in steps),
        _squeezing_step(parameters),
        Step(
            "report",
            REPORT,
            report,
            {
                "data": "data",
                "probe": "probe",
                "kernel": "kernel",
                "squeezing": "squeezing",
                **models,
                **forces,
                **audited,
                **contrasted,
                **{name: name for name in compared},
            },
        ),
    ]


def _rows_and_base(parameters: StudyParameters) -> list[Step]:
    """Rows and untrained policy; between what both give and later stages may lie a probe set."""
    built = parameters.probe_set
    rows = "data" if built is None else "rows"
    steps = [Step(rows, DATA, parameters.data), _base_step("base", parameters, data=rows)]
    if built is not None:
        steps.append(probe_set_step("data", built, data=rows, model="base"))
    return steps


def _audit(parameters: StudyParameters) -> tuple[list[Step], list[Step]]:
    """The stages of the audit before and after preference training, where it is on pairs."""
    objective = parameters.preference.objective
    if objective.name not in PAIR_OBJECTIVES:
        return [], []
    job = AuditJob(**dict(parameters.audit), objective=objective)
    before = [Step("audit", AUDIT, job, {"data": "data", "model": "sft"})]
    reads = {"data": "data", "audit": "audit", "model": "preference"}
    if parameters.preference_filter is not None:
        before.append(
            Step("filter", FILTER, parameters.preference_filter, {"data": "data", "audit": "audit"})
        )
        reads["filter"] = "filter"
    return before, [Step("foresight", FORESIGHT, ForesightConfig(), reads)]


def _squeezing_step(parameters: StudyParameters) -> Step:
    """The study's trainings and, on the same data, that on resampled rejected answers."""
    started = {"sft": "base", "preference": "sft"}
    if "resampled" in parameters.contrasts:
        started["resampled"] = "sft"
    job = SqueezingJob(**dict(parameters.squeezing), trainings=started)
    reads = {name: name for name in ("data", "base", *started, "probe")}
    return Step("squeezing", SQUEEZING, job, reads)


def _base_step(name: str, parameters: StudyParameters, *, data: str) -> Step:
    builtin = parameters.base.source == "builtin"
    return Step(name, BASE, parameters.base, {"data": data} if builtin else {})


def _resampled(parameters: StudyParameters) -> list[Step]:
    """Preference training on rejected answers that are sampled once from where it starts."""
    sampling = SampleConfig(seed=parameters.seed)
    return [
        Step("resampled-data", RESAMPLED, sampling, {"data": "data", "model": "sft"}),
        Step(
            "resampled",
            PREFERENCE,
            _unrecorded(parameters.preference),
            {"data": "resampled-data", "model": "sft"},
        ),
    ]


def _flat_world(parameters: StudyParameters) -> list[Step]:
    """The whole way through a world whose answers prefer no style: nothing is there to squeeze."""
    flat = parameters.data.world.model_copy(update={"zipf": 0.0})
    data = parameters.data.model_copy(update={"world": flat})
    return [
        Step("flat-data", DATA, data),
        _base_step("flat-base", parameters, data="flat-data"),
        Step(
            "flat-sft",
            SFT,
            _unrecorded(parameters.sft),
            {"data": "flat-data", "model": "flat-base"},
        ),
        Step(
            "flat-world",
            PREFERENCE,
            _unrecorded(parameters.preference),
            {"data": "flat-data", "model": "flat-sft"},
        ),
    ]


def _unrecorded(config: TrainConfig) -> TrainConfig:
    return config.model_copy(update={"record_steps": ()})


_CONTRASTS = {"resampled": _resampled, "flat_world": _flat_world}
