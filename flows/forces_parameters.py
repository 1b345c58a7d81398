"""Parameters of the flow `forces`, and how its checkpoints and data become results of stages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from dynolab.data.sources import DataConfig, resolve_data
from dynolab.errors import ConfigError
from dynolab.objectives import build_objective
from flows.parameters import Name, StudyParameters, load_parameters, resolved
from flows.steps import study_steps
from tasks.analysis import AnalysisConfig
from tasks.base import BaseConfig, resolve_base
from tasks.kernel import KernelConfig
from tasks.runtime.chain import finished
from tasks.runtime.given import given_result
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageResult
from tasks.selection import observed_rows, updating_rows

Label = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]


class CheckpointConfig(BaseModel):
    """A model to analyse: a stage's result, or a folder or Hub name."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    result: str | None = Field(
        None,
        description="A result with a model in it: MLflow's tag `store.address`, or "
        "`<stage>/<key>` with the key's first digits, or the step's name in `study`.",
    )
    model: str | None = Field(None, description="A model folder, or a Hub name.")
    revision: str | None = Field(None, description="Of a Hub name: branch, tag or commit.")
    step: int | None = Field(
        None, ge=0,
        description="A recorded step of a training's result: analyses that step's weights in the "
        "metric of its realised optimizer step.",
    )  # fmt: skip


class ForcesParameters(BaseModel):
    """What a person chooses when asking what pushes what."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name = Field("forces", description="Name of the analysis: its run and its page's file.")
    project: str = Field("dynolab", description="MLflow experiment.")
    study: str | None = Field(
        None, description="Study file; its finished steps can then be named as results."
    )
    checkpoints: dict[Label, CheckpointConfig] = Field(
        ..., min_length=1, description="Models by the names that the page gives them, in order."
    )
    reference: str | None = Field(
        None,
        description="Checkpoint that objectives with a reference compare with; default: the first.",
    )
    data: DataConfig = DataConfig()
    data_result: str | None = Field(
        None, description="Result of a data stage to use instead; named as checkpoints are."
    )
    analysis: AnalysisConfig = AnalysisConfig()
    kernel: KernelConfig = KernelConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> ForcesParameters:
        for label, one in self.checkpoints.items():
            if (one.result is None) == (one.model is None):
                raise ConfigError(
                    f"checkpoints.{label}", one.result or "nothing",
                    "give either result (of a stage) or model (a folder or Hub name)",
                )  # fmt: skip
            if one.model is not None and one.step is not None:
                raise ConfigError(
                    f"checkpoints.{label}.step", one.step, "only a training's result has steps"
                )
        if self.reference is not None and self.reference not in self.checkpoints:
            there = ", ".join(self.checkpoints)
            raise ConfigError("reference", self.reference, f"name a checkpoint: {there}")
        if self.data_result is not None and "data" in self.model_fields_set:
            raise ConfigError("data_result", self.data_result, "give data or data_result, not both")
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether the objective compares with a reference."""
        return build_objective(self.analysis.objective).needs_reference

    @property
    def reference_label(self) -> str:
        """The checkpoint that objectives with a reference compare with."""
        return self.reference or next(iter(self.checkpoints))


def model_step(label: str) -> str:
    """Name of a checkpoint's model among the flow's results."""
    return f"model-{label}"


def resolved_forces(
    parameters: ForcesParameters, platform: Platform
) -> tuple[ForcesParameters, dict[str, StageResult]]:
    """The parameters with sources at the content they have now, and the results that they name.

    **Raises** `ConfigError` for what is no result, a result without what is asked of it, and data
    that the objective or the observed kinds cannot use.
    """
    known = _results_of(parameters.study, platform) if parameters.study else {}
    given: dict[str, StageResult] = {}
    checkpoints = dict(parameters.checkpoints)
    for label, one in parameters.checkpoints.items():
        if one.result is not None:
            field = f"checkpoints.{label}"
            found = _given(f"{field}.result", one.result, known, platform)
            _check_checkpoint(field, one, found, platform)
            given[model_step(label)] = found
        else:
            commit = _import_config(one, f"checkpoints.{label}.model").revision
            checkpoints[label] = one.model_copy(update={"revision": commit})
    wanted = parameters.data_result
    if wanted is None and parameters.study and "data" not in parameters.model_fields_set:
        wanted = "data"
    if wanted is None:
        update = {"checkpoints": checkpoints, "data": resolve_data(parameters.data)}
        return parameters.model_copy(update=update), given
    given["data"] = _given("data_result", wanted, known, platform)
    _check_data(wanted, given["data"], parameters, platform)
    return parameters.model_copy(update={"checkpoints": checkpoints}), given


def import_config(one: CheckpointConfig) -> BaseConfig:
    """The base stage's settings that bring a folder or Hub name into the store."""
    assert one.model is not None, "results need no import"
    return BaseConfig(source=one.model, revision=one.revision)


def _import_config(one: CheckpointConfig, field: str) -> BaseConfig:
    try:
        return resolve_base(import_config(one))
    except ConfigError as error:
        raise ConfigError(field, error.value, error.remedy) from error


def _results_of(study: str, platform: Platform) -> dict[str, StageResult]:
    steps = study_steps(resolved(load_parameters(StudyParameters, Path(study))))
    return finished(steps, platform)


def _given(
    field: str, reference: str, known: Mapping[str, StageResult], platform: Platform
) -> StageResult:
    if reference in known:
        return known[reference]
    if "/" not in reference:
        there = ", ".join(known)
        remedy = f"finished steps are: {there}" if there else "run its study first"
        raise ConfigError(field, reference, f"is no finished step of the study; {remedy}")
    return given_result(platform.store, field, reference)


def _check_checkpoint(
    field: str, one: CheckpointConfig, found: StageResult, platform: Platform
) -> None:
    files = platform.store.manifest(found.address, found.digest).files
    if not any(path.startswith("model/") for path in files):
        raise ConfigError(
            f"{field}.result", one.result,
            f"a result of stage {found.stage} holds no model; name a base or training result",
        )  # fmt: skip
    if one.step is None:
        return
    steps = {int(path.split("/")[1][5:]) for path in files if path.startswith("forces/step-")}
    if one.step not in steps:
        there = ", ".join(map(str, sorted(steps))) or "none; set its record_steps"
        raise ConfigError(f"{field}.step", one.step, f"was not recorded; recorded steps: {there}")


def _check_data(
    reference: str, found: StageResult, parameters: ForcesParameters, platform: Platform
) -> None:
    files = platform.store.manifest(found.address, found.digest).files
    missing = [name for name in ("train.jsonl", "probes.jsonl") if name not in files]
    if missing:
        raise ConfigError(
            "data_result", reference,
            f"a result of stage {found.stage} holds no {missing[0]}; name a data stage's result",
        )  # fmt: skip
    folder = platform.store.folder(found.address, found.digest)
    objective = parameters.analysis.objective
    for part, config in (("analysis", parameters.analysis), ("kernel", parameters.kernel)):
        try:
            observed_rows(folder, config)
            updating_rows(folder, config, objective)
        except ConfigError as error:
            raise ConfigError(f"{part}.{error.field}", error.value, error.remedy) from error
