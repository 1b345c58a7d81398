"""The audit: a model and preference pairs → the effect of one step on each pair → page."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, model_validator

from dynolab.data.sources.load import DataConfig
from dynolab.errors import under_field
from dynolab.objectives import build_objective
from flows.checkpoints import (
    ModelConfig,
    StudyFile,
    check_data_named_once,
    check_named,
    import_steps,
    resolved_sources,
)
from flows.flow import FlowParameters, Form, Name, Plan, StagedFlow, Step
from flows.parameters.parse import as_change
from flows.study.flow import PREFERENCE_OBJECTIVES
from tasks.audit import AUDIT, FORESIGHT, AuditJob, ForesightConfig
from tasks.data import file_for_model
from tasks.pages import AUDIT_PAGE, AuditPageConfig
from tasks.runtime.stage import Platform

MODEL, TRAINED = "model", "trained"


class AuditParameters(FlowParameters):
    """Parameters of the audit of preference pairs before training."""

    name: Name = Field("audit", description="Name of the audit: its run and its page's file.")
    study: StudyFile = None
    model: ModelConfig = Field(
        ModelConfig(), description="Model that preference training will start from."
    )
    trained: ModelConfig | None = Field(
        None,
        description="Model after preference training; shows which answers fell, and which ranking "
        "predicted it.",
    )
    data: DataConfig = DataConfig()
    data_result: str | None = Field(
        None, description="Result of a data stage to use instead, in the format of model.result."
    )
    audit: AuditJob = AuditJob()

    @model_validator(mode="after")
    def _fits_together(self) -> AuditParameters:
        for field, model in self.models.items():
            check_named(field, model)
        check_data_named_once(self.data_result, self.model_fields_set)
        with under_field("audit.objective.loss"):
            build_objective(self.audit.objective)
        return self

    @property
    def models(self) -> dict[str, ModelConfig]:
        """The models by field."""
        fields = {MODEL: self.model, TRAINED: self.trained}
        return {field: model for field, model in fields.items() if model is not None}


def named_on_command_line(model: str | None, data: Path | None, trained: str | None) -> list[str]:
    """Turns the options of `dynolab audit` into changes of settings."""
    models = {"model.model": model, "trained.model": trained}
    settings: dict[str, object] = {name: it for name, it in models.items() if it is not None}
    if data is not None:
        read = file_for_model(data, model)
        # Another file's page is kept, too.
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{data.stem}-audit").lstrip("._-")
        settings |= {
            "name": name,
            "data.source": "file",
            "data.path": str(data),
            "data.format": read.format,
            "data.heldout_rows": 0,
            "data.probe_pairs": 0,
        }
        if read.format == "chat":
            settings["data.chat"] = read.chat
            settings["data.chat_model"] = read.chat_model
    return [as_change(name, value) for name, value in settings.items()]


def plan(parameters: AuditParameters, platform: Platform) -> Plan:
    """Plans the import of models and data, the audit, its foresight, and the page.

    **Raises** `ConfigError` for an unknown result, or one without the needed files.
    """
    needed = ("train.jsonl", "heldout.jsonl")
    update, existing = resolved_sources(parameters, parameters.models, platform, needed)
    resolved = parameters.model_copy(update=update)
    steps = [
        *import_steps(resolved.models, existing, data=resolved.data),
        Step("audit", AUDIT, resolved.audit, {"data": "data", "model": MODEL}),
    ]
    shown = {"data": "data", "audit": "audit"}
    if resolved.trained is not None:
        steps.append(Step("foresight", FORESIGHT, ForesightConfig(), {**shown, "model": TRAINED}))
        shown["foresight"] = "foresight"
    page = AuditPageConfig(
        name=resolved.name, objective=resolved.audit.objective.name, settings=resolved.as_yaml
    )
    return Plan(resolved, [*steps, Step("audit-page", AUDIT_PAGE, page, shown)], existing)


FLOW = StagedFlow(
    "audit",
    AuditParameters,
    plan,
    page="audit-page",
    file="audit.html",
    pool="cpu",
    forms={
        "audit": Form(
            "The effect of one step on each pair, before training.",
            {
                "study": "study",
                "data_result": "data_result",
                "model_result": "model.result",
                "trained_result": "trained.result",
                "objective": "audit.objective.name",
                "beta": "audit.objective.beta",
                "pairs": "audit.pairs",
            },
            objectives=PREFERENCE_OBJECTIVES,
        )
    },
)
