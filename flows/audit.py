"""The audit: a model and preference pairs → the effect of one step on each pair → page."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, model_validator

from dynolab.audit.ranking_file import ranking_name, read_ranking
from dynolab.data.source_checks import FilePath, named_file
from dynolab.data.sources.load import DataConfig
from dynolab.errors import ConfigError, under_field
from dynolab.objectives import build_objective
from dynolab.store import hash_file
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
from tasks.audit import AUDIT, FORESIGHT, RANKING, AuditJob, ForesightConfig, RankingConfig
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
    ranking: FilePath | None = Field(
        None,
        description="JSON lines or Parquet with the id of each pair and a score from elsewhere, "
        "higher where the chosen answer is expected to fall: judged beside the audit's rankings.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> AuditParameters:
        for field, model in self.models.items():
            check_named(field, model)
        check_data_named_once(self.data_result, self.model_fields_set)
        if self.ranking is not None and self.trained is None:
            remedy = "is judged by what training did; name the trained model (trained)"
            raise ConfigError("ranking", self.ranking, remedy)
        with under_field("audit.objective.loss"):
            build_objective(self.audit.objective)
        return self

    @property
    def models(self) -> dict[str, ModelConfig]:
        """The models by field."""
        fields = {MODEL: self.model, TRAINED: self.trained}
        return {field: model for field, model in fields.items() if model is not None}


def named_on_command_line(
    model: str | None, data: Path | None, trained: str | None, ranking: Path | None = None
) -> list[str]:
    """Turns the options of `dynolab audit` into changes of settings."""
    options = {
        "model.model": model,
        "trained.model": trained,
        "ranking": None if ranking is None else str(ranking),
    }
    settings: dict[str, object] = {name: it for name, it in options.items() if it is not None}
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

    **Raises** `ConfigError` for an unknown result, or one without the needed files, and for a
    ranking that is none.
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
        foreseen, job = {**shown, "model": TRAINED}, ForesightConfig()
        if resolved.ranking is not None:
            ranked, job = _ranking(resolved.ranking, resolved.audit)
            # Before the audit: scores that do not fit the pairs end the run.
            steps.insert(len(steps) - 1, ranked)
            foreseen["ranking"] = "ranking"
        steps.append(Step("foresight", FORESIGHT, job, foreseen))
        shown["foresight"] = "foresight"
    page = AuditPageConfig(
        name=resolved.name, objective=resolved.audit.objective.name, settings=resolved.as_yaml
    )
    return Plan(resolved, [*steps, Step("audit-page", AUDIT_PAGE, page, shown)], existing)


def _ranking(path: str, audit: AuditJob) -> tuple[Step, ForesightConfig]:
    """The step that reads a ranking, and the settings with which foresight judges it."""
    file = named_file("ranking", path, "give JSON lines or Parquet with id and score")
    read_ranking(file)
    config = RankingConfig(
        path=str(file.resolve()),
        sha256=hash_file(file).sha256,
        pairs=audit.pairs,
        heldout_pairs=audit.heldout_pairs,
    )
    step = Step("ranking", RANKING, config, {"data": "data"})
    return step, ForesightConfig(ranking=ranking_name(file))


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
                "ranking": "ranking",
            },
            objectives=PREFERENCE_OBJECTIVES,
        )
    },
)
