"""The steps of a study, each with its settings and the steps that it reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.rollouts.sample import SampleConfig
from dynolab.training.config import TrainConfig
from flows.probes import watched_rows_and_base
from flows.remedies import remedies_file
from flows.study.parameters import StudyParameters
from tasks.audit import AUDIT, AuditJob
from tasks.data import DATA
from tasks.filter import FILTER
from tasks.foresight import FORESIGHT, ForesightConfig
from tasks.kernel import KERNEL, KernelJob
from tasks.ledger import LEDGER, LedgerJob
from tasks.probe import PROBE
from tasks.report import REPORT, ReportConfig
from tasks.resampled import RESAMPLED
from tasks.runtime.pipeline import Step
from tasks.step_forces import FORCES
from tasks.study_squeezing import SQUEEZING, SqueezingJob
from tasks.training import PREFERENCE, SFT


def study_steps(
    parameters: StudyParameters,
    compared: Collection[str] = (),
    missing: Mapping[str, str] | None = None,
) -> list[Step]:
    """The study's steps in order, each with its settings and the steps that it reads.

    **Arguments:** `compared`: names of comparisons whose existing results the report reads;
    `missing`: comparisons that have not run, with the commands that run them.
    """
    report = ReportConfig(
        name=parameters.name,
        seed=parameters.seed,
        settings=parameters.as_yaml,
        objective=parameters.preference.objective,
        learning_rate=parameters.preference.optimizer.learning_rate,
        missing=dict(missing or {}),
        remedies=remedies_file(
            parameters.name,
            parameters.seed,
            parameters.data,
            parameters.base,
            parameters.probe_set,
            parameters.sft,
            parameters.audit,
            parameters.preference,
        ),
    )
    models = {name: name for name in ("base", *_trainings(parameters))}
    contrasts = [_CONTRASTS[name](parameters) for name in parameters.contrasts]
    contrasted = {f"contrast_{steps[-1].name}": steps[-1].name for steps in contrasts}
    audits, foresights = _audit(parameters)
    trained_on = "filter" if parameters.preference_filter else "data"
    ledgers = _ledger(parameters, trained_on)
    audited = [step for step in (*audits, *foresights) if step.name != "filter"]
    forces = _forces(parameters, trained_on)
    kernel, squeezing = _kernel(parameters, models), _squeezing(parameters, trained_on)
    return [
        *watched_rows_and_base(parameters.data, parameters.base, parameters.probe_set),
        *_sft(parameters),
        *audits,
        Step(
            "preference",
            PREFERENCE,
            parameters.preference,
            {"data": trained_on, "model": parameters.start},
        ),
        *foresights,
        *ledgers,
        Step("probe", PROBE, parameters.probe, {"data": "data", **models}),
        *forces,
        *kernel,
        *(step for steps in contrasts for step in steps),
        *squeezing,
        Step(
            "report",
            REPORT,
            report,
            {
                "data": "data",
                "probe": "probe",
                **models,
                **{step.name.replace("-", "_"): step.name for step in forces},
                **{step.name: step.name for step in (*audited, *ledgers, *kernel, *squeezing)},
                **contrasted,
                **{name: name for name in compared},
            },
        ),
    ]


def _trainings(parameters: StudyParameters) -> dict[str, str]:
    """Every training of the study, with the step that it starts from."""
    started = {} if parameters.sft is None else {"sft": "base"}
    return started | {"preference": parameters.start}


def _sft(parameters: StudyParameters) -> list[Step]:
    """The step of SFT, if there is one."""
    if parameters.sft is None:
        return []
    return [Step("sft", SFT, parameters.sft, {"data": "data", "model": "base"})]


def _forces(parameters: StudyParameters, trained_on: str) -> list[Step]:
    """The forces of every training that records steps, if they are wanted."""
    if parameters.forces is None:
        return []
    recorded = {"sft": parameters.sft, "preference": parameters.preference}
    return [
        Step(
            f"{name}-forces",
            FORCES,
            parameters.forces,
            {
                **({trained_on: trained_on} if name == "preference" else {}),
                "data": "data",
                "trained": name,
                "model": model,
            },
        )
        for name, model in _trainings(parameters).items()
        if (training := recorded[name]) is not None and training.record_steps
    ]


def _kernel(parameters: StudyParameters, models: Collection[str]) -> list[Step]:
    """The kernel at every model, if it is wanted."""
    if parameters.kernel is None:
        return []
    job = KernelJob(**dict(parameters.kernel), labels=tuple(models))
    return [
        Step("kernel", KERNEL, job, {"data": "data", **{f"model_{name}": name for name in models}})
    ]


def _audit(parameters: StudyParameters) -> tuple[list[Step], list[Step]]:
    """The steps of audit and filter, before and after a preference training on pairs."""
    objective = parameters.preference.objective
    if objective.name not in PAIR_OBJECTIVES:
        return [], []
    before, after = [], []
    reads = {"data": "data", "audit": "audit", "model": "preference"}
    if parameters.audit is not None:
        job = AuditJob(**dict(parameters.audit), objective=objective)
        before.append(Step("audit", AUDIT, job, {"data": "data", "model": parameters.start}))
        after.append(Step("foresight", FORESIGHT, ForesightConfig(), reads))
    if parameters.preference_filter is not None:
        ranked = {} if parameters.preference_filter.pairs else {"audit": "audit"}
        before.append(
            Step("filter", FILTER, parameters.preference_filter, {"data": "data", **ranked})
        )
        reads["filter"] = "filter"
    return before, after


def _ledger(parameters: StudyParameters, trained_on: str) -> list[Step]:
    """The step that keeps the account of preference training, if one is wanted."""
    if parameters.ledger is None:
        return []
    job = LedgerJob(**dict(parameters.ledger), training=parameters.preference)
    return [
        Step(
            "ledger",
            LEDGER,
            job,
            {"data": trained_on, "model": parameters.start, "trained": "preference"},
        )
    ]


def _squeezing(parameters: StudyParameters, trained_on: str) -> list[Step]:
    """The step on squeezing, if wanted: of every training and, if run, contrast `resampled`."""
    if parameters.squeezing is None:
        return []
    started = _trainings(parameters)
    if "resampled" in parameters.contrasts:
        started["resampled"] = parameters.start
    job = SqueezingJob(**dict(parameters.squeezing), trainings=started)
    reads = {name: name for name in ("data", trained_on, "base", *started, "probe")}
    return [Step("squeezing", SQUEEZING, job, reads)]


def _resampled(parameters: StudyParameters) -> list[Step]:
    """Preference training on rejected answers sampled once from the model that it starts from."""
    sampling, start = SampleConfig(seed=parameters.seed), parameters.start
    return [
        Step("resampled-data", RESAMPLED, sampling, {"data": "data", "model": start}),
        Step(
            "resampled",
            PREFERENCE,
            _unrecorded(parameters.preference),
            {"data": "resampled-data", "model": start},
        ),
    ]


def _flat_world(parameters: StudyParameters) -> list[Step]:
    """SFT and preference training in a world without a preferred style: nothing can squeeze.

    The style touches answers alone, so that both worlds have one corpus and one base model.
    """
    flat = parameters.data.world.model_copy(update={"zipf": 0.0})
    data = parameters.data.model_copy(update={"world": flat})
    steps, start = [Step("flat-data", DATA, data)], "base"
    if parameters.sft is not None:
        start, reads = "flat-sft", {"data": "flat-data", "model": "base"}
        steps.append(Step("flat-sft", SFT, _unrecorded(parameters.sft), reads))
    training = _unrecorded(parameters.preference)
    reads = {"data": "flat-data", "model": start}
    return [*steps, Step("flat-world", PREFERENCE, training, reads)]


def _unrecorded(config: TrainConfig) -> TrainConfig:
    return config.model_copy(update={"record_steps": ()})


_CONTRASTS = {"resampled": _resampled, "flat_world": _flat_world}
"""Contrast → its steps: preference training that should show no squeezing."""
