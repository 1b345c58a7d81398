"""The audit: a model and preference pairs → what each pair would do → page."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pydantic import Field, model_validator

from dynolab.data.sources.load import DataConfig, resolve_data
from flows.checkpoints import (
    ModelConfig,
    check_data_named_once,
    check_named,
    import_steps,
    named_data,
    resolved_sources,
)
from flows.flow import FlowParameters, Form, Name, Plan, StagedFlow
from flows.parameters import as_change
from flows.study import PREFERENCE_OBJECTIVES
from tasks.audit import AUDIT, AuditJob
from tasks.audit_page import AUDIT_PAGE, AuditPageConfig
from tasks.foresight import FORESIGHT, ForesightConfig
from tasks.runtime.pipeline import Step
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageResult

MODEL, TRAINED = "model", "trained"


class AuditParameters(FlowParameters):
    """What a person chooses when asking what pairs would do before training on them."""

    name: Name = Field("audit", description="Name of the audit: its run and its page's file.")
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
        for field, model in self.models.items():
            check_named(field, model)
        check_data_named_once(self.data_result, self.model_fields_set)
        return self

    @property
    def models(self) -> dict[str, ModelConfig]:
        """The models by field."""
        both = {MODEL: self.model, TRAINED: self.trained}
        return {field: model for field, model in both.items() if model is not None}


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
    named = named_data(parameters.study, parameters.data_result, parameters.model_fields_set)
    models, existing = resolved_sources(
        parameters.models,
        platform,
        study=parameters.study,
        data=named,
        needed=("train.jsonl", "heldout.jsonl"),
    )
    update: dict[str, object] = dict(models)
    if named is None:
        update["data"] = resolve_data(parameters.data)
    return parameters.model_copy(update=update), existing


def audit_steps(parameters: AuditParameters, existing: Collection[str]) -> list[Step]:
    """The audit's stages in order; `existing` are names of results that need no stage."""
    page = AuditPageConfig(
        name=parameters.name,
        objective=parameters.audit.objective.name,
        settings=parameters.as_yaml,
    )
    judged, shown = [], {"data": "data", "audit": "audit"}
    if parameters.trained is not None:
        judged = [
            Step(
                "foresight",
                FORESIGHT,
                ForesightConfig(),
                {"data": "data", "audit": "audit", "model": TRAINED},
            )
        ]
        shown["foresight"] = "foresight"
    return [
        *import_steps(parameters.models, existing, data=parameters.data),
        Step("audit", AUDIT, parameters.audit, {"data": "data", "model": MODEL}),
        *judged,
        Step("audit-page", AUDIT_PAGE, page, shown),
    ]


def plan(parameters: AuditParameters, platform: Platform) -> Plan:
    """Models and data that are not results already, the audit, what came of it, and the page."""
    known, existing = resolved_audit(parameters, platform)
    return Plan(known, audit_steps(known, existing), existing)


FLOW = StagedFlow(
    "audit",
    AuditParameters,
    plan,
    page="audit-page",
    file="audit.html",
    pool="cpu",
    forms={
        "audit": Form(
            "What a step on each pair would do, before training.",
            {
                "study": "study",
                "data_result": "data_result",
                "model_result": "model.result",
                "trained_result": "trained.result",
                "objective": "audit.objective.name",
                "beta": "audit.objective.beta",
                "pairs": "audit.pairs",
            },
            objective="audit.objective",
            objectives=PREFERENCE_OBJECTIVES,
        )
    },
)
