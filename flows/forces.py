"""The force analysis: checkpoints and data → force maps → page."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from dynolab.data.sources.load import DataConfig
from dynolab.errors import ConfigError, check_known, under_field
from dynolab.objectives import build_objective
from flows.checkpoints import (
    CheckpointConfig,
    StudyFile,
    check_data_named_once,
    check_named,
    import_steps,
    inputs_of,
    resolved_sources,
)
from flows.flow import FlowParameters, Form, Name, Plan, StagedFlow, Step
from tasks.force_map import ANALYSIS, AnalysisConfig, AnalysisJob
from tasks.kernel import KERNEL, KernelConfig, KernelJob
from tasks.pages import FORCE_PAGE, ForcePageConfig
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageResult
from tasks.shared.selection import observed_rows, updating_rows

Label = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]


class ForcesParameters(FlowParameters):
    """Parameters of the force analysis."""

    name: Name = Field("forces", description="Name of the analysis: its run and its page's file.")
    study: StudyFile = None
    checkpoints: dict[Label, CheckpointConfig] = Field(
        ..., min_length=1, description="Name on the page → model, in the page's order."
    )
    reference: str | None = Field(
        None,
        description="Checkpoint that is the reference of objectives that need one; default: the "
        "first.",
    )
    data: DataConfig = DataConfig()
    data_result: str | None = Field(
        None,
        description="Result of a data stage to use instead, in the format of checkpoints' results.",
    )
    analysis: AnalysisConfig = AnalysisConfig()
    kernel: KernelConfig = KernelConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> ForcesParameters:
        for label, checkpoint in self.checkpoints.items():
            check_named(f"checkpoints.{label}", checkpoint)
            if checkpoint.model is not None and checkpoint.step is not None:
                raise ConfigError(
                    f"checkpoints.{label}.step",
                    checkpoint.step,
                    "only a training's result has steps; leave it out, or give result, not model",
                )
            if self.analysis.updating == "recorded" and checkpoint.step is None:
                raise ConfigError(
                    f"checkpoints.{label}.step",
                    None,
                    "analysis.updating: recorded reads a recorded step's batch; set the step",
                )
        with under_field("analysis.objective.loss"):
            build_objective(self.analysis.objective)
        check_known("reference", self.reference, self.checkpoints)
        check_data_named_once(self.data_result, self.model_fields_set)
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether the objective needs a reference; recorded steps include their own."""
        return (
            self.analysis.updating == "data"
            and build_objective(self.analysis.objective).needs_reference
        )

    @property
    def reference_label(self) -> str:
        """The checkpoint that is the reference of objectives that need one."""
        return self.reference or next(iter(self.checkpoints))


def model_step(label: str) -> str:
    """Name of the step, or of the existing result, with a checkpoint's model."""
    return f"model-{label}"


def plan(parameters: ForcesParameters, platform: Platform) -> Plan:
    """Plans the import of models and data, every checkpoint's forces, and the page.

    A recorded step may have to be replayed, so what its training read is looked up, too.

    **Raises** `ConfigError` for an unknown result, one without the needed files, and data without
    the observed kinds or the answers that the objective needs.
    """
    fields = {f"checkpoints.{label}": label for label in parameters.checkpoints}
    models = {field: parameters.checkpoints[label] for field, label in fields.items()}
    needed = ("train.jsonl", "probes.jsonl")
    update, results = resolved_sources(parameters, models, platform, needed)
    existing = {
        model_step(fields[field]) if field in fields else field: result
        for field, result in results.items()
    }
    update["checkpoints"] = {label: update.pop(field) for field, label in fields.items()}
    resolved = parameters.model_copy(update=update)
    read: dict[str, dict[str, str]] = {}
    for label, checkpoint in resolved.checkpoints.items():
        model = model_step(label)
        inputs = {} if checkpoint.step is None else inputs_of(existing[model], platform)
        replayed = {f"{model}.{name}": it for name, it in inputs.items() if it}
        existing |= replayed
        read[label] = {name: name for name in replayed}
    if "data" in existing:
        _check_data(existing["data"], resolved, platform)
    return Plan(resolved, forces_steps(resolved, existing, read), existing)


def _check_data(data: StageResult, parameters: ForcesParameters, platform: Platform) -> None:
    """Raises `ConfigError` for data without the observed kinds or the objective's answers."""
    folder = platform.store.folder(data.address, data.digest)
    objective = parameters.analysis.objective if parameters.analysis.updating == "data" else None
    for part, config, pair_ids in (
        ("analysis", parameters.analysis, parameters.analysis.pair_ids),
        ("kernel", parameters.kernel, ()),
    ):
        try:
            observed_rows(folder, config, pair_ids)
            updating_rows(folder, config, objective, pair_ids)
        except ConfigError as error:
            raise ConfigError(f"{part}.{error.field}", error.value, error.remedy) from error


def forces_steps(
    parameters: ForcesParameters,
    existing: Collection[str],
    read: Mapping[str, Mapping[str, str]],
) -> list[Step]:
    """The analysis's steps in order.

    **Arguments:** `existing`: names of results, which need no step; `read`: by checkpoint those
    that a replay of its training reads.
    """
    labels = tuple(parameters.checkpoints)
    models = {label: model_step(label) for label in labels}
    reference = (
        {"reference": models[parameters.reference_label]} if parameters.needs_reference else {}
    )
    checkpoints = {models[label]: parameters.checkpoints[label] for label in labels}
    analyses = [
        Step(
            f"analysis-{label}",
            ANALYSIS,
            AnalysisJob(**dict(parameters.analysis), step=checkpoint.step),
            {"data": "data", "model": models[label], **reference, **read[label]},
        )
        for label, checkpoint in parameters.checkpoints.items()
    ]
    kernel = KernelJob(
        **dict(parameters.kernel),
        labels=labels,
        steps={label: checkpoint.step for label, checkpoint in parameters.checkpoints.items()},
    )
    page = ForcePageConfig(
        name=parameters.name,
        labels=labels,
        reference=parameters.reference_label if reference else None,
        settings=parameters.as_yaml,
    )
    analysed = {f"analysis_{label}": f"analysis-{label}" for label in labels}
    return [
        *import_steps(checkpoints, existing, data=parameters.data),
        *analyses,
        Step(
            "kernel",
            KERNEL,
            kernel,
            {
                "data": "data",
                **{f"model_{label}": models[label] for label in labels},
                **{name: name for names in read.values() for name in names},
            },
        ),
        Step("force-page", FORCE_PAGE, page, {"kernel": "kernel", **analysed}),
    ]


FLOW = StagedFlow(
    "forces",
    ForcesParameters,
    plan,
    page="force-page",
    file="forces.html",
    pool="cpu",
    forms={
        "forces": Form(
            "Which token pushes which, at checkpoints.",
            {
                "study": "study",
                "data_result": "data_result",
                "objective": "analysis.objective.name",
                "beta": "analysis.objective.beta",
                "reference": "reference",
                "updating": "analysis.updating",
                "learning_rate": "analysis.learning_rate",
                "updating_pairs": "analysis.updating_pairs",
                "observed_pairs": "analysis.observed_pairs",
            },
        )
    },
)
