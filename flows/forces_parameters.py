"""Parameters of the flow `forces`, and how its checkpoints and data become results of stages."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from dynolab.data.sources.load import DataConfig, resolve_data
from dynolab.errors import ConfigError
from dynolab.objectives import build_objective
from flows.checkpoints import (
    CheckpointConfig,
    check_files,
    check_named,
    named_result,
    resolved_model,
    results_of,
)
from flows.parameters import Name
from tasks.analysis import AnalysisConfig
from tasks.kernel import KernelConfig
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageResult
from tasks.selection import observed_rows, updating_rows

Label = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]


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
            check_named(f"checkpoints.{label}", one)
            if one.model is not None and one.step is not None:
                raise ConfigError(
                    f"checkpoints.{label}.step", one.step, "only a training's result has steps"
                )
            if self.analysis.updating == "recorded" and one.step is None:
                raise ConfigError(
                    f"checkpoints.{label}.step",
                    None,
                    "analysis.updating: recorded reads a recorded step's batch; name the step",
                )
        if self.reference is not None and self.reference not in self.checkpoints:
            there = ", ".join(self.checkpoints)
            raise ConfigError("reference", self.reference, f"name a checkpoint: {there}")
        if self.data_result is not None and "data" in self.model_fields_set:
            raise ConfigError("data_result", self.data_result, "give data or data_result, not both")
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether the objective compares with a reference that is not recorded already."""
        return (
            self.analysis.updating == "data"
            and build_objective(self.analysis.objective).needs_reference
        )

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
    known = results_of(parameters.study, platform)
    given: dict[str, StageResult] = {}
    checkpoints = {}
    for label, one in parameters.checkpoints.items():
        checkpoints[label], found = resolved_model(f"checkpoints.{label}", one, known, platform)
        if found is not None:
            given[model_step(label)] = found
    wanted = parameters.data_result
    if wanted is None and parameters.study and "data" not in parameters.model_fields_set:
        wanted = "data"
    if wanted is None:
        update = {"checkpoints": checkpoints, "data": resolve_data(parameters.data)}
        return parameters.model_copy(update=update), given
    given["data"] = named_result("data_result", wanted, known, platform)
    _check_data(wanted, given["data"], parameters, platform)
    return parameters.model_copy(update={"checkpoints": checkpoints}), given


def _check_data(
    reference: str, found: StageResult, parameters: ForcesParameters, platform: Platform
) -> None:
    check_files("data_result", reference, found, ("train.jsonl", "probes.jsonl"), platform)
    folder = platform.store.folder(found.address, found.digest)
    updating = parameters.analysis.updating
    objective = parameters.analysis.objective if updating == "data" else None
    for part, config, named in (
        ("analysis", parameters.analysis, parameters.analysis.pair_ids),
        ("kernel", parameters.kernel, ()),
    ):
        try:
            observed_rows(folder, config, named)
            updating_rows(folder, config, objective, named)
        except ConfigError as error:
            raise ConfigError(f"{part}.{error.field}", error.value, error.remedy) from error
