"""The comparison of arms: shared start → trainings on sampled groups → evaluation → page."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from dynolab.errors import ConfigError, check_known, under_field
from dynolab.objectives.advantage_rules import AdvantageRuleConfig
from dynolab.objectives.grpo import GRPOConfig, SimKOConfig
from dynolab.objectives.policy_gradient import ClippedConfig
from dynolab.objectives.registry import GroupConfig, ObjectiveConfig, names_of
from dynolab.rollouts.rewards import Rewards
from dynolab.training.config import GroupTrainConfig, TrainConfig
from flows.comparison import Comparison, Label, given_arms, resolved_comparison, told_by
from flows.flow import SOURCE_FIELDS, Form, Name, Plan, StagedFlow, Step
from flows.probes import base_step
from tasks.data import DATA, PROMPTS
from tasks.evaluate import (
    DISPLACEMENT,
    EVALUATE,
    DisplacementConfig,
    DisplacementJob,
    EvaluationConfig,
    EvaluationJob,
)
from tasks.forces import FORCES, ForcesConfig
from tasks.pages import GROUP_PAGE, GroupPageConfig
from tasks.shared.rewarded_answers import AnsweringConfig
from tasks.shared.seeds import step_of
from tasks.study_squeezing import SQUEEZING, SqueezingConfig, SqueezingJob
from tasks.training import GROUP, SFT

SHARED = ("prompts", "data", "base", "sft", "start")
"""Names of shared steps; an arm cannot have one as its label."""

ARMS: dict[Label, ObjectiveConfig] = {
    "grpo": GRPOConfig(),
    "nthr": GRPOConfig(advantage_rule=AdvantageRuleConfig(name="nthr")),
    "simko": SimKOConfig(),
    "positives": GRPOConfig(advantage_rule=AdvantageRuleConfig(name="positives_only")),
    "random": GRPOConfig(advantage_rule=AdvantageRuleConfig(name="random_tokens")),
}


class GrpoParameters(Comparison):
    """Parameters of the comparison of trainings on sampled groups."""

    name: Name = "grpo"
    sft: TrainConfig | None = Field(
        TrainConfig(), description="SFT before, on the data's own answers; null: none."
    )
    training: GroupTrainConfig = Field(
        GroupTrainConfig(), description="Training settings of all arms, without the objective."
    )
    arms: Annotated[dict[Label, ObjectiveConfig], BeforeValidator(given_arms)] = Field(
        ARMS,
        min_length=1,
        description="Name on the page → objective; null leaves one of the file out.",
    )
    baseline: str | None = Field(
        None, description="Arm that the others are compared with; default: the first."
    )
    evaluation: EvaluationConfig = EvaluationConfig()
    displacement: DisplacementConfig = DisplacementConfig()
    forces: ForcesConfig = Field(
        ForcesConfig(), description="Forces of each arm's steps in training.record_steps."
    )
    squeezing: SqueezingConfig = Field(
        SqueezingConfig(),
        description="Squeezing index of each arm, if training.probe_every is set.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> GrpoParameters:
        check_known("baseline", self.baseline, self.arms)
        if "objective" in self.training.model_fields_set:
            raise ConfigError(
                "training.objective",
                self.training.objective.name,
                "every arm has its own objective; set it under arms",
            )
        for label in self.arms:
            if label in SHARED:
                raise ConfigError("arms", label, "a shared step has this name; choose another")
            with under_field(f"arms.{label}"):
                self.arm(label, 0)
        without_facts = self.data.source == "world" and not self.data.states_facts
        for reward in self.training.rewards:
            if reward.name.startswith("world_") and without_facts:
                raise ConfigError(
                    "training.rewards",
                    reward.name,
                    "fits only the world of facts; use exact or ends_with for "
                    f"{self.data.world.name}",
                )
        with under_field("training.rewards"):
            Rewards(self.training.rewards)
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
    """The comparison's steps in order: the shared ones, every arm's, and the page.

    Steps that are the same for all seeds (given rows, given weights) share a key, so they run once.
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
    measured = [step_of("start", seed) for seed in parameters.seeds] + [step.name for step in arms]
    return [*shared, *arms, Step("grpo-page", GROUP_PAGE, page, {name: name for name in measured})]


def _shared(parameters: GrpoParameters, seed: int) -> list[Step]:
    """The steps that make the model all arms of a seed start from, and its evaluation."""
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
    return [
        *steps,
        Step(
            step_of("start", seed),
            EVALUATE,
            _evaluation(parameters, seed),
            {"prompts": f"prompts-{seed}", "model": model},
        ),
    ]


def _arm(parameters: GrpoParameters, label: str, seed: int) -> list[Step]:
    """The steps of an arm: its training and evaluation, the forces of its recorded steps, if any,
    and, for an objective on groups, the displacement test.
    """
    training = parameters.arm(label, seed)
    reads = {"prompts": f"prompts-{seed}", "model": _start(parameters, seed)}
    probed = {"data": f"data-{seed}"} if training.probe_every else {}
    trained = step_of(label, seed)
    steps = [
        Step(trained, GROUP, training, reads | probed),
        Step(
            step_of(label, seed, "evaluation"),
            EVALUATE,
            _evaluation(parameters, seed),
            {"prompts": f"prompts-{seed}", "model": trained, "start": step_of("start", seed)},
            compared_by=told_by(label, seed, training),
        ),
    ]
    if training.record_steps:
        watched = {"data": f"data-{seed}", "trained": trained}
        steps.append(
            Step(step_of(label, seed, "forces"), FORCES, parameters.forces, reads | watched)
        )
    if training.probe_every:
        start = _start(parameters, seed)
        squeezing = SqueezingJob(
            **dict(parameters.squeezing), trainings={trained: start}, main=trained
        )
        moved = {"prompts": f"prompts-{seed}", "data": f"data-{seed}", start: start}
        steps.append(
            Step(
                step_of(label, seed, "squeezing"), SQUEEZING, squeezing, moved | {trained: trained}
            )
        )
    if isinstance(training.objective, ClippedConfig):
        test = DisplacementJob(
            **dict(parameters.displacement),
            **AnsweringConfig.of(training),
            objective=training.objective,
            optimizer=training.optimizer,
            completions=training.completions,
        )
        steps.append(Step(step_of(label, seed, "displacement"), DISPLACEMENT, test, reads))
    return steps


def _evaluation(parameters: GrpoParameters, seed: int) -> EvaluationJob:
    answering = AnsweringConfig.of(parameters.training) | {"seed": seed}
    return EvaluationJob(**dict(parameters.evaluation), **answering)


def _start(parameters: GrpoParameters, seed: int) -> str:
    """Name of the step whose model all arms of a seed start from."""
    return f"base-{seed}" if parameters.sft is None else f"sft-{seed}"


FLOW = StagedFlow(
    "grpo",
    GrpoParameters,
    lambda parameters, _: Plan(study := resolved_comparison(parameters), grpo_steps(study)),
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
                "sft_steps": "sft.steps",
                "steps": "training.steps",
                "learning_rate": "training.optimizer.learning_rate",
                "batch_size": "training.batch_size",
                "completions": "training.completions",
                "temperature": "training.temperature",
                "max_new_tokens": "training.max_new_tokens",
                "k": "evaluation.k",
                "samples": "evaluation.samples",
            },
            objectives=names_of(GroupConfig, in_forms=True),
            notes={
                "objective": "Of one more arm, called chosen.",
                "advantage_rule": "Of the arm called chosen, which Objective adds.",
            },
        )
    },
)
