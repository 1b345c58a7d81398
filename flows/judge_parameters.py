"""Parameters of the flow `judge`: whose answers are compared, on which prompts, and by whom."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.sources.load import DataConfig, resolve_data
from dynolab.errors import ConfigError
from dynolab.judges.config import ExactJudgeConfig, JudgeConfig, LogProbJudgeConfig
from flows.checkpoints import ModelConfig, check_named, resolved_model, results_of
from flows.comparison import Label
from flows.parameters import Name, StudyParameters, load_parameters, seeded_data
from tasks.answers import AnswersConfig
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageResult

REFERENCE = "reference"


class JudgeParameters(BaseModel):
    """What a person chooses when comparing what policies say."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name = Field("judge", description="Name of the comparison: its run and its page's file.")
    project: str = Field("dynolab", description="MLflow experiment.")
    study: str | None = Field(
        None, description="Study file; its finished steps can then be named as results."
    )
    policies: dict[Label, ModelConfig] = Field(
        min_length=2, description="The models, by the names that the page gives them."
    )
    baseline: str | None = Field(
        None, description="Policy that the others are compared with; default: the first."
    )
    data: DataConfig | None = Field(
        None, description="Whose prompts are answered; default: the study's."
    )
    answers: AnswersConfig = AnswersConfig()
    judges: dict[Label, JudgeConfig] = Field(
        {"exact": ExactJudgeConfig()},
        min_length=1,
        description="By the names that the page gives them.",
    )
    reference: ModelConfig | None = Field(
        None, description="The model whose log-probabilities a log_prob judge goes by."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> JudgeParameters:
        for field, one in self.models.items():
            check_named(field, one)
        if self.baseline is not None and self.baseline not in self.policies:
            raise ConfigError(
                "baseline", self.baseline, f"name a policy: {', '.join(self.policies)}"
            )
        if self.data is None and self.study is None:
            raise ConfigError("data", None, "give data, or the study whose prompts are answered")
        by_reference = [
            name for name, one in self.judges.items() if isinstance(one, LogProbJudgeConfig)
        ]
        if by_reference and self.reference is None:
            raise ConfigError(
                "reference", None, f"judge {by_reference[0]} goes by one: name a model"
            )
        if self.reference is not None and not by_reference:
            raise ConfigError(
                "reference",
                self.reference.result or self.reference.model,
                "no judge goes by it; add one with name: log_prob, or leave it out",
            )
        return self

    @property
    def models(self) -> dict[str, ModelConfig]:
        """All models by field."""
        found = {policy_step(name): one for name, one in self.policies.items()}
        return found if self.reference is None else {**found, REFERENCE: self.reference}

    @property
    def baseline_label(self) -> str:
        """The policy that the others are compared with."""
        return self.baseline or next(iter(self.policies))

    @property
    def others(self) -> tuple[str, ...]:
        """The policies that are compared with the baseline."""
        return tuple(name for name in self.policies if name != self.baseline_label)


def policy_step(name: str) -> str:
    """The name of a policy as a result that steps read."""
    return f"policies.{name}"


def resolved_judge(
    parameters: JudgeParameters, platform: Platform
) -> tuple[JudgeParameters, dict[str, StageResult]]:
    """The parameters with sources at the content they have now, and the results that they name.

    **Raises** `ConfigError` for what is no result, or a result without a model.
    """
    known = results_of(parameters.study, platform)
    given: dict[str, StageResult] = {}
    models: dict[str, ModelConfig] = {}
    for field, one in parameters.models.items():
        models[field], found = resolved_model(field, one, known, platform)
        if found is not None:
            given[field] = found
    update = {
        "data": resolve_data(_data(parameters)),
        "policies": {name: models[policy_step(name)] for name in parameters.policies},
        "reference": models.get(REFERENCE),
    }
    return parameters.model_copy(update=update), given


def _data(parameters: JudgeParameters) -> DataConfig:
    if parameters.data is not None:
        return parameters.data
    assert parameters.study is not None, "without data there is a study"
    study = load_parameters(StudyParameters, Path(parameters.study))
    return seeded_data(study.data, study.seed)
