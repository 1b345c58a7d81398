"""Parameters of the flow `grpo`: which arms are compared, over which seeds, from which start."""

from __future__ import annotations

from pydantic import Field, model_validator

from dynolab.errors import ConfigError
from dynolab.objectives.advantages import AdvantageRuleConfig
from dynolab.objectives.grpo import GRPOConfig
from dynolab.objectives.registry import ObjectiveConfig
from dynolab.objectives.simko import SimKOConfig
from dynolab.rollouts.rewards import Rewards
from dynolab.training.config import GroupTrainConfig, TrainConfig
from flows.comparison import Comparison, Label
from flows.parameters import Name
from tasks.displacement import DisplacementConfig
from tasks.evaluate import EvaluationConfig
from tasks.forces import ForcesConfig

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
