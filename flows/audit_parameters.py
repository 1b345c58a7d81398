"""Parameters of the flow `audit`, and how its models and data become results of stages."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.sources.load import DataConfig, resolve_data
from dynolab.errors import ConfigError
from flows.checkpoints import (
    ModelConfig,
    check_files,
    check_named,
    named_result,
    resolved_model,
    results_of,
)
from flows.parameters import Name, as_change
from tasks.audit import AuditJob
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageResult

MODEL, TRAINED = "model", "trained"


class AuditParameters(BaseModel):
    """What a person chooses when asking what pairs would do before training on them."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name = Field("audit", description="Name of the audit: its run and its page's file.")
    project: str = Field("dynolab", description="MLflow experiment.")
    study: str | None = Field(
        None, description="Study file; its finished steps can then be named as results."
    )
    model: ModelConfig = Field(
        ModelConfig(), description="What preference training will start from."
    )
    trained: ModelConfig | None = Field(
        None, description="What it led to, once it is done: whose answers fell, and who foresaw it."
    )
    data: DataConfig = DataConfig()
    data_result: str | None = Field(
        None, description="Result of a data stage to use instead; named as models are."
    )
    audit: AuditJob = AuditJob()

    @model_validator(mode="after")
    def _fits_together(self) -> AuditParameters:
        for field, one in self.models.items():
            check_named(field, one)
        if self.data_result is not None and "data" in self.model_fields_set:
            raise ConfigError("data_result", self.data_result, "give data or data_result, not both")
        return self

    @property
    def models(self) -> dict[str, ModelConfig]:
        """The models by field."""
        both = {MODEL: self.model, TRAINED: self.trained}
        return {field: one for field, one in both.items() if one is not None}


def named_on_command_line(model: str | None, data: Path | None, trained: str | None) -> list[str]:
    """The changes of settings that the options of `dynolab audit` stand for."""
    settings: dict[str, object] = {}
    if model is not None:
        settings["model.model"] = model
    if trained is not None:
        settings["trained.model"] = trained
    if data is not None:
        settings |= {
            "data.source": "file",
            "data.path": str(data),
            "data.heldout_rows": 0,
            "data.probe_pairs": 0,
        }
    return [as_change(name, value) for name, value in settings.items()]


def resolved_audit(
    parameters: AuditParameters, platform: Platform
) -> tuple[AuditParameters, dict[str, StageResult]]:
    """The parameters with sources at the content they have now, and the results that they name.

    **Raises** `ConfigError` for what is no result, or a result without what is asked of it.
    """
    known = results_of(parameters.study, platform)
    given: dict[str, StageResult] = {}
    models = {}
    for field, one in parameters.models.items():
        models[field], found = resolved_model(field, one, known, platform)
        if found is not None:
            given[field] = found
    wanted = parameters.data_result
    if wanted is None and parameters.study and "data" not in parameters.model_fields_set:
        wanted = "data"
    if wanted is None:
        update = {**models, "data": resolve_data(parameters.data)}
        return parameters.model_copy(update=update), given
    given["data"] = named_result("data_result", wanted, known, platform)
    needed = ("train.jsonl", "heldout.jsonl")
    check_files("data_result", wanted, given["data"], needed, platform)
    return parameters.model_copy(update=models), given
