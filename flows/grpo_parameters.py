"""Parameters of the flow `grpo`: which arms are compared, over which seeds, from which start."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from dynolab.data.sources import DataConfig, resolve_data
from dynolab.errors import ConfigError
from dynolab.objectives.advantages import AdvantageRuleConfig
from dynolab.objectives.grpo import GRPOConfig
from dynolab.objectives.registry import ObjectiveConfig
from dynolab.objectives.simko import SimKOConfig
from dynolab.rollouts.rewards import Rewards
from dynolab.training.config import GroupTrainConfig, TrainConfig
from flows.parameters import Name
from tasks.base import BaseConfig, resolve_base
from tasks.displacement import DisplacementConfig
from tasks.evaluate import EvaluationConfig
from tasks.forces import ForcesConfig

Label = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
Seed = Annotated[int, Field(ge=0)]

SHARED = ("prompts", "data", "base", "sft", "start")
"""Names of the stages that arms share; no arm can have one."""

ARMS: dict[Label, ObjectiveConfig] = {
    "grpo": GRPOConfig(),
    "nthr": GRPOConfig(advantage_rule=AdvantageRuleConfig(name="nthr")),
    "simko": SimKOConfig(),
    "positives": GRPOConfig(advantage_rule=AdvantageRuleConfig(name="positives_only")),
    "random": GRPOConfig(advantage_rule=AdvantageRuleConfig(name="random_tokens")),
}


class GrpoParameters(BaseModel):
    """What a person chooses when comparing trainings on sampled groups."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name = Field("grpo", description="Name of the comparison: its run and its page's file.")
    project: str = Field("dynolab", description="MLflow experiment.")
    seeds: tuple[Seed, ...] = Field(
        (0, 1, 2), min_length=1,
        description="Each of weights, batches and samples alike, and of the built-in world. Rows "
        "of another source are the same for all.",
    )  # fmt: skip
    data: DataConfig = DataConfig()
    base: BaseConfig = BaseConfig()
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
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError("seeds", list(self.seeds), "name every seed once")
        if self.baseline is not None and self.baseline not in self.arms:
            raise ConfigError("baseline", self.baseline, f"name an arm: {', '.join(self.arms)}")
        if "objective" in self.training.model_fields_set:
            raise ConfigError(
                "training.objective", self.training.objective.name,
                "arms have objectives of their own; name it under arms",
            )  # fmt: skip
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
        if self.base.source == "builtin" and self.data.source != "world":
            raise ConfigError(
                "base.source", "builtin",
                "the built-in model knows the words of the built-in world alone; with "
                f"data.source = {self.data.source} name a model folder or a Hub name",
            )  # fmt: skip
        return self

    @property
    def baseline_label(self) -> str:
        """The arm that the others are compared with."""
        return self.baseline or next(iter(self.arms))

    def arm(self, label: str, seed: int) -> GroupTrainConfig:
        """An arm's training with one seed."""
        changes = {"objective": self.arms[label].model_dump(), "seed": seed}
        return GroupTrainConfig.model_validate(self.training.model_dump() | changes)

    def data_of(self, seed: int) -> DataConfig:
        """The rows of one seed: another world, or the same rows where they are given."""
        if self.data.source != "world":
            return self.data
        world = self.data.world.model_copy(update={"seed": seed})
        return self.data.model_copy(update={"seed": seed, "world": world})

    def base_of(self, seed: int) -> BaseConfig:
        """The base model of one seed: other weights, or the same where they are given."""
        if self.base.source != "builtin":
            return self.base
        training = self.base.training.model_copy(update={"seed": seed})
        return self.base.model_copy(update={"seed": seed, "training": training})


def resolved_grpo(parameters: GrpoParameters) -> GrpoParameters:
    """The parameters with sources at the content they have now.

    Raises ConfigError for a source that is not there.
    """
    update = {"data": resolve_data(parameters.data), "base": resolve_base(parameters.base)}
    return parameters.model_copy(update=update)
