"""The comparison of arms: shared start → trainings on sampled groups → evaluation → page."""

from __future__ import annotations

from pydantic import Field, model_validator

from dynolab.errors import ConfigError
from dynolab.objectives.advantages import AdvantageRuleConfig
from dynolab.objectives.clipping import ClippedConfig
from dynolab.objectives.grpo import GRPOConfig
from dynolab.objectives.registry import ObjectiveConfig
from dynolab.objectives.simko import SimKOConfig
from dynolab.rollouts.rewards import Rewards
from dynolab.training.config import GroupTrainConfig, TrainConfig
from flows.comparison import Comparison, Label, resolved_comparison
from flows.flow import Form, Name, Plan, StagedFlow
from flows.form import SOURCE_FIELDS
from tasks.data import DATA
from tasks.displacement import DISPLACEMENT, DisplacementConfig, DisplacementJob
from tasks.evaluate import EVALUATE, EvaluationConfig, EvaluationJob
from tasks.group_page import (
    GROUP_PAGE,
    GroupPageConfig,
    displacement_of,
    evaluation_of,
    start_of,
    training_of,
)
from tasks.group_training import GROUP, PROMPTS
from tasks.runtime.pipeline import Step
from tasks.runtime.stage import Platform
from tasks.shared.data_and_base import base_step
from tasks.shared.rewarded_answers import AnsweringConfig
from tasks.step_forces import FORCES, ForcesConfig
from tasks.training import SFT

SHARED = ("prompts", "data", "base", "sft", "start")
"""Names of the stages that arms share; no arm can have one."""

ARMS: dict[Label, ObjectiveConfig] = {
    "grpo": GRPOConfig(),
    "nthr": GRPOConfig(advantage_rule=AdvantageRuleConfig(name="nthr")),
    "simko": SimKOConfig(),
    "positives": GRPOConfig(advantage_rule=AdvantageRuleConfig(name="positives_only")),
    "random": GRPOConfig(advantage_rule=AdvantageRuleConfig(name="random_tokens")),
}


class GrpoParameters(Comparison):
    """What a person chooses when comparing trainings on sampled groups."""

    name: Name = "grpo"
    sft: TrainConfig | None = Field(
        TrainConfig(), description="Training before, on the data's own answers; null: none."
    )
    training: GroupTrainConfig = Field(
        GroupTrainConfig(), description="What all arms share: all but the objective."
    )
    arms: dict[Label, ObjectiveConfig] = Field(
        ARMS, min_length=1, description="The objectives compared, by the names the page gives them."
    )
    baseline: str | None = Field(
        None, description="Arm that the others are compared with; default: the first."
    )
    evaluation: EvaluationConfig = EvaluationConfig()
    displacement: DisplacementConfig = DisplacementConfig()
    forces: ForcesConfig = Field(
        ForcesConfig(), description="Of the steps that training.record_steps names, arm by arm."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> GrpoParameters:
        if self.baseline is not None and self.baseline not in self.arms:
            raise ConfigError("baseline", self.baseline, f"name an arm: {', '.join(self.arms)}")
        if "objective" in self.training.model_fields_set:
            raise ConfigError(
                "training.objective",
                self.training.objective.name,
                "arms have objectives of their own; name it under arms",
            )
        for label in self.arms:
            if label in SHARED:
                raise ConfigError("arms", label, "a shared stage has this name; give another")
            try:
                self.arm(label, 0)
            except ConfigError as error:
                raise ConfigError(f"arms.{label}", error.value, error.remedy) from error
        try:
            Rewards(self.training.rewards)
        except ConfigError as error:
            raise ConfigError("training.rewards", error.value, error.remedy) from error
        return self

    @property
    def baseline_label(self) -> str:
        """The arm that the others are compared with."""
        return self.baseline or next(iter(self.arms))

    def arm(self, label: str, seed: int) -> GroupTrainConfig:
        """An arm's training with one seed."""
        changes = {"objective": self.arms[label].model_dump(), "seed": seed}
        return GroupTrainConfig.model_validate(self.training.model_dump() | changes)


def grpo_steps(parameters: GrpoParameters) -> list[Step]:
    """The comparison's stages in order: what arms share, every arm, and the page.

    What seeds share too (given rows, given weights) has one key: the store has it once.
    """
    page = GroupPageConfig(
        name=parameters.name,
        seeds=parameters.seeds,
        arms=parameters.arms,
        baseline=parameters.baseline_label,
        epsilon=parameters.displacement.epsilon,
        update=parameters.displacement.update(parameters.training.optimizer),
        k=parameters.evaluation.k,
        settings=parameters.as_yaml,
    )
    shared = [step for seed in parameters.seeds for step in _shared(parameters, seed)]
    arms = [
        step
        for seed in parameters.seeds
        for label in parameters.arms
        for step in _arm(parameters, label, seed)
    ]
    measured = [start_of(seed) for seed in parameters.seeds]
    measured += [step.name for step in arms if step.stage is not FORCES]
    return [*shared, *arms, Step("grpo-page", GROUP_PAGE, page, {name: name for name in measured})]


def _shared(parameters: GrpoParameters, seed: int) -> list[Step]:
    """From prompts to the model that all arms start from, and what that is worth."""
    data, model = f"data-{seed}", _start(parameters, seed)
    rows, base = parameters.data_of(seed), parameters.base_of(seed)
    steps = [Step(f"prompts-{seed}", PROMPTS, rows)]
    training = parameters.training
    watched = bool(training.probe_every or training.record_steps)
    if parameters.sft is not None or base.source == "builtin" or watched:
        steps.append(Step(data, DATA, rows))
    steps.append(base_step(f"base-{seed}", base, data=data))
    if parameters.sft is not None:
        sft = parameters.sft.model_copy(update={"seed": seed})
        steps.append(Step(f"sft-{seed}", SFT, sft, {"data": data, "model": f"base-{seed}"}))
    evaluation = _evaluation(parameters, seed)
    return [
        *steps,
        Step(start_of(seed), EVALUATE, evaluation, {"prompts": f"prompts-{seed}", "model": model}),
    ]


def _arm(parameters: GrpoParameters, label: str, seed: int) -> list[Step]:
    """An arm's training, its evaluation, what its recorded steps did where there are any, and the
    test of one update where it is one on groups.
    """
    training = parameters.arm(label, seed)
    reads = {"prompts": f"prompts-{seed}", "model": _start(parameters, seed)}
    probed = {"data": f"data-{seed}"} if training.probe_every else {}
    trained = training_of(label, seed)
    steps = [
        Step(trained, GROUP, training, reads | probed),
        Step(
            evaluation_of(label, seed),
            EVALUATE,
            _evaluation(parameters, seed),
            {"prompts": f"prompts-{seed}", "model": trained, "start": start_of(seed)},
        ),
    ]
    if training.record_steps:
        watched = {"data": f"data-{seed}", "trained": trained}
        steps.append(Step(f"{trained}-forces", FORCES, parameters.forces, watched))
    if isinstance(training.objective, ClippedConfig):
        test = DisplacementJob(
            **dict(parameters.displacement),
            **AnsweringConfig.of(training),
            objective=training.objective,
            optimizer=training.optimizer,
            completions=training.completions,
        )
        steps.append(Step(displacement_of(label, seed), DISPLACEMENT, test, reads))
    return steps


def _evaluation(parameters: GrpoParameters, seed: int) -> EvaluationJob:
    asked = AnsweringConfig.of(parameters.training) | {"seed": seed}
    return EvaluationJob(**dict(parameters.evaluation), **asked)


def _start(parameters: GrpoParameters, seed: int) -> str:
    """The step whose model all arms of a seed start from."""
    return f"base-{seed}" if parameters.sft is None else f"sft-{seed}"


def plan(parameters: GrpoParameters, _: Platform) -> Plan:
    """What arms share, every arm, and the page."""
    known = resolved_comparison(parameters)
    return Plan(known, grpo_steps(known))


FLOW = StagedFlow(
    "grpo",
    GrpoParameters,
    plan,
    page="grpo-page",
    file="grpo.html",
    forms={
        "grpo": Form(
            "Training on groups of the model's own answers, arm by arm.",
            {
                **SOURCE_FIELDS,
                "seeds": "seeds",
                "objective": "arms.chosen.name",
                "advantage_rule": "arms.chosen.advantage_rule.name",
                "baseline": "baseline",
                "steps": "training.steps",
                "learning_rate": "training.optimizer.learning_rate",
                "batch_size": "training.batch_size",
                "completions": "training.completions",
                "temperature": "training.temperature",
                "max_new_tokens": "training.max_new_tokens",
            },
            objective="arms.chosen",
            objectives=("grpo", "simko"),
        )
    },
)
