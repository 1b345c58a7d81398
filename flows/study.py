"""The study: data → base → SFT → preference training → probe → forces → report.

The flow `train` is its trainings alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from dynolab.data.source_checks import FilePath
from dynolab.data.sources.load import DataConfig, resolve_data
from dynolab.errors import ConfigError, under_field
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.registry import (
    PAIR_OBJECTIVES,
    RowConfig,
    build_objective,
    names_of,
)
from dynolab.probes.making.probe_set import ProbeSetConfig
from dynolab.rollouts.generator import SampleConfig
from dynolab.training.config import TrainConfig
from flows.comparison import resolved_comparison
from flows.flow import SOURCE_FIELDS, FlowParameters, Form, Name, Plan, StagedFlow, Step, finished
from flows.mitigation import MitigationParameters, mitigation_steps, remedies_file
from flows.parameters import load_parameters
from flows.probes import watched_rows_and_base
from flows.registry import REGISTRY, load_flow
from tasks.answers import RESAMPLED
from tasks.audit import (
    AUDIT,
    FILTER,
    FORESIGHT,
    AuditConfig,
    AuditJob,
    FilterConfig,
    ForesightConfig,
)
from tasks.base import BaseConfig, check_model_fits_data, resolve_base, seeded_base, seeded_data
from tasks.data import DATA
from tasks.forces import FORCES, ForcesConfig
from tasks.kernel import KERNEL, KernelConfig, KernelJob
from tasks.ledger import LEDGER, LedgerConfig, LedgerJob
from tasks.probe import PROBE, ProbeConfig
from tasks.report import BESIDE, REMEDIES, REPORT, ReportConfig, early_report
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageConfig, StageResult
from tasks.study_squeezing import SQUEEZING, SqueezingConfig, SqueezingJob
from tasks.training import PREFERENCE, SFT

Contrast = Literal["resampled", "flat_world"]


class ComparisonFiles(StageConfig):
    """Study files of comparisons; the report shows the findings of those that have run."""

    mitigation: FilePath | None = Field(
        None, description="Comparison of remedies against squeezing."
    )
    reproduction: FilePath | None = Field(None, description="Reproduction of the papers' findings.")


class StudyParameters(FlowParameters):
    """Parameters of a study."""

    name: Name = Field(
        "builtin", description="Name of the study: its parent run in MLflow, and its report's file."
    )
    seed: int = Field(0, ge=0, description="Seed of data, weights and batches.")
    data: DataConfig = DataConfig()
    base: BaseConfig = BaseConfig()
    probe_set: ProbeSetConfig | None = Field(
        None,
        description="Probe set to build; null: the data's own probes, or the file data.probes.",
    )
    sft: TrainConfig | None = Field(
        TrainConfig(),
        description="Finetuning before preference training; null: none, the base model is "
        "finetuned already.",
    )
    audit: AuditConfig | None = Field(
        AuditConfig(), description="Ranking of the pairs before preference training; null: none."
    )
    preference_filter: FilterConfig | None = Field(
        None, description="Leaves the pairs that the audit ranks worst out of preference training."
    )
    preference: TrainConfig = TrainConfig(objective=DPOConfig())
    probe: ProbeConfig = ProbeConfig()
    forces: ForcesConfig | None = Field(
        ForcesConfig(), description="Forces of the recorded steps; null: not measured."
    )
    kernel: KernelConfig | None = Field(
        KernelConfig(), description="How strongly answers are coupled; null: not measured."
    )
    ledger: LedgerConfig | None = Field(
        None, description="Ledger of all steps of preference training; null: none."
    )
    squeezing: SqueezingConfig | None = Field(
        SqueezingConfig(), description="Where rising probability went; null: not measured."
    )
    contrasts: tuple[Contrast, ...] = Field(
        (),
        description="The same preference training on data that should show no squeezing: rejected "
        "answers sampled once from the policy that it starts from (resampled), or answers without "
        "a preferred style (flat_world, for the built-in world).",
    )
    comparisons: ComparisonFiles = ComparisonFiles()

    @model_validator(mode="after")
    def _fits_data(self) -> StudyParameters:
        if "flat_world" in self.contrasts and not self.data.states_facts:
            raise ConfigError(
                "contrasts",
                "flat_world",
                "needs the built-in world of facts; leave it out for other data",
            )
        check_model_fits_data(self.base, self.data)
        return self

    @property
    def start(self) -> str:
        """The step whose model preference training starts from."""
        return "base" if self.sft is None else "sft"

    @model_validator(mode="after")
    def _objectives_differ(self) -> StudyParameters:
        if self.sft is not None and self.sft.objective.name == self.preference.objective.name:
            raise ConfigError(
                "preference.objective.name",
                self.preference.objective.name,
                "sft has the same objective, and a report names trainings by their objectives; "
                "choose another",
            )
        return self

    @model_validator(mode="after")
    def _has_one_seed(self) -> StudyParameters:
        for name in ("probe_set", "sft", "preference"):
            section: Any = getattr(self, name)
            given = section is not None and "seed" in section.model_fields_set
            if given and section.seed != self.seed:
                raise ConfigError(
                    f"{name}.seed",
                    section.seed,
                    f"a study has one seed, {self.seed}; set `seed`, or leave this out",
                )
        return self

    @model_validator(mode="after")
    def _can_be_filtered(self) -> StudyParameters:
        with under_field("preference.objective.loss"):
            build_objective(self.preference.objective)  # a loss of one's own may not be one
        objective = self.preference.objective.name
        if (self.data.format == "unpaired") != (objective == "kto"):
            raise ConfigError(
                "data.format",
                self.data.format,
                f"does not fit {objective}: rows with labels (unpaired) are for kto, pairs for the "
                "others",
            )
        if self.preference_filter is not None and objective not in PAIR_OBJECTIVES:
            raise ConfigError(
                "preference_filter",
                self.preference_filter.by,
                f"needs a loss on pairs, which {objective} is not; leave it out",
            )
        if self.preference_filter and self.preference_filter.ranks and self.audit is None:
            raise ConfigError(
                "audit",
                None,
                "preference_filter reads its ranking; delete `audit: null`, or name the pairs "
                "(preference_filter.pairs)",
            )
        return self


def resolved(parameters: StudyParameters) -> StudyParameters:
    """Sets all seeds to the study's, and pins the sources to their current content.

    **Raises** `ConfigError` for a missing source.
    """
    seed, built = {"seed": parameters.seed}, parameters.probe_set
    return parameters.model_copy(
        update={
            "probe_set": None if built is None else built.model_copy(update=seed),
            "data": resolve_data(seeded_data(parameters.data, parameters.seed)),
            "base": resolve_base(seeded_base(parameters.base, parameters.seed)),
            "sft": None if parameters.sft is None else parameters.sft.model_copy(update=seed),
            "preference": parameters.preference.model_copy(update=seed),
        }
    )


def study_steps(
    parameters: StudyParameters,
    compared: Collection[str] = (),
    missing: Mapping[str, str] | None = None,
) -> list[Step]:
    """The study's steps in order, each with its settings and the steps that it reads.

    **Arguments:** `compared`: names of comparisons whose existing results the report reads;
    `missing`: comparisons that have not run, with the commands that run them.
    """
    study, start, objective = parameters, parameters.start, parameters.preference.objective
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
    kept = study.preference.model_copy(update={"keep_steps": study.ledger is not None})
    steps.append(Step("preference", PREFERENCE, kept, reads))
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
        remedies=remedies_file(
            study.name,
            study.seed,
            study.data,
            study.base,
            study.probe_set,
            study.sft,
            study.preference,
        ),
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


COMPARED = {"mitigation": "mitigation", "reproduction": "reproduce"}
"""Setting of `comparisons` → its flow, which may be one of a wing that is not here."""


def compared_results(parameters: StudyParameters, platform: Platform) -> dict[str, StageResult]:
    """The page results of a study's comparisons, if these are finished.

    **Raises** `ConfigError` for an invalid study file of a comparison.
    """
    files, comparisons = parameters.comparisons, dict[str, list[Step]]()
    if files.mitigation is not None:
        remedies = load_parameters(MitigationParameters, Path(files.mitigation))
        comparisons["mitigation"] = mitigation_steps(resolved_comparison(remedies))
    if files.reproduction is not None and COMPARED["reproduction"] in REGISTRY:
        flow = load_flow(COMPARED["reproduction"])
        assert isinstance(flow, StagedFlow)
        findings = load_parameters(flow.parameters, Path(files.reproduction))
        comparisons["reproduction"] = [*flow.plan(findings, platform).steps]
    pages = {
        name: finished(steps, platform).get(steps[-1].name) for name, steps in comparisons.items()
    }
    return {name: page for name, page in pages.items() if page is not None}


PREFERENCE_OBJECTIVES = names_of(RowConfig, in_forms=True)
"""Objectives that a form offers for preference training; `sft` is that of SFT."""

PREFERENCE_FIELDS = {
    "seed": "seed",
    **SOURCE_FIELDS,
    "objective": "preference.objective.name",
    "beta": "preference.objective.beta",
    "label_smoothing": "preference.objective.label_smoothing",
    "margin": "preference.objective.margin",
    "sft_weight": "preference.objective.sft_weight",
    "steps": "preference.steps",
    "optimizer": "preference.optimizer.name",
    "learning_rate": "preference.optimizer.learning_rate",
    "batch_size": "preference.batch_size",
    "ranks": "preference.engine.ranks",
    "probe_every": "preference.probe_every",
    "sft_steps": "sft.steps",
    "base_steps": "base.training.steps",
}
"""Fields of a form for preference training and the SFT before it."""


def plan(parameters: StudyParameters, platform: Platform) -> Plan:
    """Plans the study's steps; its report shows those of its comparisons that have run."""
    known = resolved(parameters)
    compared = compared_results(known, platform)
    missing = {
        name: f"{command} {shlex.quote(file)}"
        for name, command in COMPARED.items()
        if command in REGISTRY
        and (file := getattr(known.comparisons, name)) is not None
        and name not in compared
    }
    steps = study_steps(known, compared, missing)
    report = steps[-1].config
    assert isinstance(report, ReportConfig)
    return Plan(
        known,
        steps,
        compared,
        tags={"seed": str(known.seed)},
        trained="preference",
        early=partial(early_report, report, steps[-1].inputs, [step.name for step in steps]),
        # The remedies may run before the study has ended.
        beside={REMEDIES: report.remedies} if report.remedies else {},
    )


STUDY = StagedFlow(
    "study",
    StudyParameters,
    plan,
    page="report",
    file="report.html",
    beside=BESIDE,
    forms={
        "study": Form(
            "SFT, preference training, and the forces behind them.",
            {**PREFERENCE_FIELDS, "contrasts": "contrasts"},
            objectives=PREFERENCE_OBJECTIVES,
            file="builtin.yaml",
        )
    },
)


class TrainParameters(StudyParameters):
    """A study's settings; those of its analyses are ignored."""

    until: Literal["sft", "preference"] = Field("preference", description="The last training.")

    @model_validator(mode="after")
    def _has_last_training(self) -> TrainParameters:
        if self.until == "sft" and self.sft is None:
            raise ConfigError("until", "sft", "sft is null; set it, or until: preference")
        return self


def plan_training(parameters: TrainParameters, _: Platform) -> Plan:
    """Plans the study's steps that the last training needs; a later study reuses their results."""
    known = resolved(parameters)
    steps = study_steps(known)
    needed: set[str] = {parameters.until}
    for step in reversed(steps):
        if step.name in needed:
            needed |= set(step.inputs.values())
    steps = [step for step in steps if step.name in needed]
    return Plan(known, steps, tags={"seed": str(known.seed)}, trained=steps[-1].name)


TRAIN = StagedFlow(
    "train",
    TrainParameters,
    plan_training,
    page="sft",
    file="summary.json",
    forms={
        "sft": Form(
            "Supervised finetuning.",
            {
                **SOURCE_FIELDS,
                "seed": "seed",
                "objective": "sft.objective.name",
                "normalise": "sft.objective.normalise",
                "steps": "sft.steps",
                "optimizer": "sft.optimizer.name",
                "learning_rate": "sft.optimizer.learning_rate",
                "batch_size": "sft.batch_size",
                "ranks": "sft.engine.ranks",
                "probe_every": "sft.probe_every",
            },
            objectives=("sft", "sft_extended"),
            file="builtin.yaml",
            fixed=("until=sft",),
        ),
        "preference": Form(
            "Training on pairs of a chosen and a rejected answer, after SFT.",
            PREFERENCE_FIELDS,
            objectives=PREFERENCE_OBJECTIVES,
            file="builtin.yaml",
            fixed=("until=preference",),
        ),
    },
)

FLOWS = {flow.name: flow for flow in (STUDY, TRAIN)}
