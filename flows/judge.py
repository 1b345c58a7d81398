"""The comparison of policies: prompts → every policy's answers → every judge's verdicts → page."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from dynolab.data.sources.load import DataConfig, resolve_data
from dynolab.errors import ConfigError, check_known
from dynolab.judges.config import ExactJudgeConfig, JudgeConfig, LogProbJudgeConfig
from flows.checkpoints import (
    ModelConfig,
    StudyFile,
    check_named,
    import_steps,
    resolved_models,
    results_of,
)
from flows.comparison import Label
from flows.flow import FlowParameters, Name, Plan, StagedFlow, Step
from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters
from tasks.answers import ANSWERS, ANSWERS_OF, JUDGE, AnswersConfig, JudgeJob
from tasks.base import seeded_data
from tasks.data import PROMPTS
from tasks.pages import JUDGE_PAGE, JUDGED_BY, JudgePageConfig
from tasks.runtime.stage import Platform

REFERENCE = "reference"


class JudgeParameters(FlowParameters):
    """Parameters of the comparison of policies' answers."""

    name: Name = Field("judge", description="Name of the comparison: its run and its page's file.")
    study: StudyFile = None
    policies: dict[Label, ModelConfig] = Field(
        min_length=2, description="Name on the page → model."
    )
    baseline: str | None = Field(
        None, description="Policy that the others are compared with; default: the first."
    )
    data: DataConfig | None = Field(
        None, description="Data whose prompts are answered; default: the study's."
    )
    answers: AnswersConfig = AnswersConfig()
    judges: dict[Label, JudgeConfig] = Field(
        {"exact": ExactJudgeConfig()},
        min_length=1,
        description="Name on the page → judge.",
    )
    reference: ModelConfig | None = Field(
        None, description="Model whose log-probabilities a log_prob judge compares."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> JudgeParameters:
        for field, model in self.models.items():
            check_named(field, model)
        check_known("baseline", self.baseline, self.policies)
        if self.data is None and self.study is None:
            raise ConfigError("data", None, "give data, or the study whose prompts are answered")
        log_prob_judges = [
            name for name, judge in self.judges.items() if isinstance(judge, LogProbJudgeConfig)
        ]
        if log_prob_judges and self.reference is None:
            raise ConfigError(
                "reference", None, f"judge {log_prob_judges[0]} needs one; give a model"
            )
        if self.reference is not None and not log_prob_judges:
            raise ConfigError(
                "reference",
                self.reference.result or self.reference.model,
                "no judge uses it; add one with name: log_prob, or leave it out",
            )
        return self

    @property
    def models(self) -> dict[str, ModelConfig]:
        """All models by field."""
        models = {policy_step(name): policy for name, policy in self.policies.items()}
        return models if self.reference is None else {**models, REFERENCE: self.reference}

    @property
    def baseline_label(self) -> str:
        """The policy that the others are compared with."""
        return self.baseline or next(iter(self.policies))

    @property
    def others(self) -> tuple[str, ...]:
        """The policies that are compared with the baseline."""
        return tuple(name for name in self.policies if name != self.baseline_label)


def policy_step(name: str) -> str:
    """Name of the step, or of the existing result, with a policy's model."""
    return f"policies.{name}"


def plan(parameters: JudgeParameters, platform: Platform) -> Plan:
    """Plans the import of models, all answers, all judges' verdicts, and the page.

    **Raises** `ConfigError` for an unknown result, or one without a model.
    """
    finished = results_of(parameters.study, platform)
    models, existing = resolved_models(parameters.models, finished, platform)
    data = parameters.data
    if data is None:
        assert parameters.study is not None, "without data there is a study"
        study = load_parameters(StudyParameters, Path(parameters.study))
        data = seeded_data(study.data, study.seed)
    data = resolve_data(data)
    resolved = parameters.model_copy(
        update={
            "data": data,
            "policies": {name: models[policy_step(name)] for name in parameters.policies},
            "reference": models.get(REFERENCE),
        }
    )
    answered = {f"{ANSWERS_OF}{name}": f"answers-{name}" for name in resolved.policies}
    steps = [
        Step("prompts", PROMPTS, data),
        *import_steps(resolved.models, existing),
        *(
            Step(
                f"answers-{name}",
                ANSWERS,
                resolved.answers,
                {"prompts": "prompts", "model": policy_step(name)},
            )
            for name in resolved.policies
        ),
    ]
    for name, judge in resolved.judges.items():
        job = JudgeJob(
            label=name, judge=judge, baseline=resolved.baseline_label, policies=resolved.others
        )
        likely = {REFERENCE: REFERENCE} if isinstance(judge, LogProbJudgeConfig) else {}
        steps.append(Step(f"judge-{name}", JUDGE, job, {**answered, **likely}))
    page = JudgePageConfig(
        name=resolved.name,
        baseline=resolved.baseline_label,
        policies=resolved.others,
        judges=resolved.judges,
        answers=resolved.answers,
        settings=resolved.as_yaml,
    )
    judged = {f"{JUDGED_BY}{name}": f"judge-{name}" for name in resolved.judges}
    steps.append(Step("judge-page", JUDGE_PAGE, page, {**answered, **judged}))
    return Plan(resolved, steps, existing)


FLOW = StagedFlow("judge", JudgeParameters, plan, page="judge-page", file="judge.html", pool="cpu")
