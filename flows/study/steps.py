"""The steps of a study, each with its settings and the steps that it reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.rollouts.generator import SampleConfig
from dynolab.training.config import TrainConfig
from flows.flow import Step
from flows.mitigation import remedies_file
from flows.probes import watched_rows_and_base
from flows.study.parameters import StudyParameters
from tasks.answers import RESAMPLED
from tasks.audit import AUDIT, FILTER, FORESIGHT, AuditJob, ForesightConfig
from tasks.data import DATA
from tasks.forces import FORCES
from tasks.kernel import KERNEL, KernelJob
from tasks.ledger import LEDGER, LedgerJob
from tasks.probe import PROBE
from tasks.report import REPORT, ReportConfig
from tasks.study_squeezing import SQUEEZING, SqueezingJob
from tasks.training import PREFERENCE, SFT


def study_steps(
    study: StudyParameters,
    compared: Collection[str] = (),
    missing: Mapping[str, str] | None = None,
) -> list[Step]:
    """The study's steps in order, each with its settings and the steps that it reads.

    **Arguments:** `compared`: names of comparisons whose existing results the report reads;
    `missing`: comparisons that have not run, with the commands that run them.
    """
    start, objective = study.start, study.preference.objective
    steps = watched_rows_and_base(study.data, study.base, study.probe_set)
    started = {"preference": start}
    if study.sft is not None:
        steps.append(Step("sft", SFT, study.sft, {"data": "data", "model": "base"}))
        started = {"sft": "base", **started}
    foreseen = {"data": "data", "audit": "audit", "model": "preference"}
    is_audited = study.audit is not None and objective.name in PAIR_OBJECTIVES
    if study.audit is not None and is_audited:
        job = AuditJob(**dict(study.audit), objective=objective)
        steps.append(Step("audit", AUDIT, job, {"data": "data", "model": start}))
    trained_on = "data"
    if study.preference_filter is not None:
        trained_on = foreseen["filter"] = "filter"
        ranked = {"audit": "audit"} if study.preference_filter.ranks else {}
        steps.append(Step("filter", FILTER, study.preference_filter, {"data": "data", **ranked}))
    reads = {"data": trained_on, "model": start}
    preference = study.preference.model_copy(update={"keep_steps": study.ledger is not None})
    steps.append(Step("preference", PREFERENCE, preference, reads))
    if is_audited:
        steps.append(Step("foresight", FORESIGHT, ForesightConfig(), foreseen))
    if study.ledger is not None:
        account = LedgerJob(**dict(study.ledger), training=study.preference)
        steps.append(Step("ledger", LEDGER, account, {**reads, "trained": "preference"}))
    models = {name: name for name in ("base", *started)}
    steps.append(Step("probe", PROBE, study.probe, {"data": "data", **models}))
    for name, model in started.items():
        training: TrainConfig = getattr(study, name)
        if study.forces is not None and training.record_steps:
            filtered = {trained_on: trained_on} if name == "preference" else {}
            taken_apart = {**filtered, "data": "data", "trained": name, "model": model}
            steps.append(Step(f"{name}-forces", FORCES, study.forces, taken_apart))
    if study.kernel is not None:
        kernel = KernelJob(**dict(study.kernel), labels=tuple(models))
        coupled = {"data": "data", **{f"model_{name}": name for name in models}}
        steps.append(Step("kernel", KERNEL, kernel, coupled))
    contrasts = [_CONTRASTS[name](study) for name in study.contrasts]
    steps += [step for contrast in contrasts for step in contrast]
    if study.squeezing is not None:
        if "resampled" in study.contrasts:
            started["resampled"] = start
        squeezed = SqueezingJob(**dict(study.squeezing), trainings=started)
        measured = {name: name for name in ("data", trained_on, "base", *started, "probe")}
        steps.append(Step("squeezing", SQUEEZING, squeezed, measured))
    report = ReportConfig(
        name=study.name,
        seed=study.seed,
        settings=study.as_yaml,
        objective=objective,
        learning_rate=study.preference.optimizer.learning_rate,
        missing=dict(missing or {}),
        remedies=remedies_file(study),
    )
    shown = {
        **{step.name.replace("-", "_"): step.name for step in steps if step.stage in _SHOWN},
        **{f"contrast_{contrast[-1].name}": contrast[-1].name for contrast in contrasts},
        "data": "data",
        **models,
        **{name: name for name in compared},
    }
    return [*steps, Step("report", REPORT, report, shown)]


_SHOWN = (PROBE, FORCES, AUDIT, FORESIGHT, LEDGER, KERNEL, SQUEEZING)
"""Stages whose results the report reads, beside the models."""


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
    data = parameters.data.model_copy(
        update={"world": parameters.data.world.model_copy(update={"zipf": 0.0})}
    )
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
