"""Parameters of the flow `reproduce`: the papers' trainings, on which model and data."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from dynolab.claims.reproduction import (
    AFTER_EXTENDED,
    AFTER_EXTENDED_HALF,
    AFTER_SFT,
    FROM_BASE,
    IPO,
    ON_POLICY,
    ON_POLICY_IPO,
    RESAMPLED,
)
from dynolab.errors import ConfigError
from dynolab.objectives.ipo import IPOConfig
from flows.comparison import Label
from flows.pair_arms import PairComparison
from flows.parameters import Name
from tasks.arm import ArmConfig

ARMS: dict[Label, ArmConfig] = {
    FROM_BASE: ArmConfig(start="base"),
    AFTER_SFT: ArmConfig(),
    AFTER_EXTENDED: ArmConfig(start="extended"),
    AFTER_EXTENDED_HALF: ArmConfig(start="extended_half"),
    RESAMPLED: ArmConfig(pairs="resampled"),
}
"""The trainings on the data's pairs that the papers' claims are about, each by DPO."""

ON_POLICY_ARMS: dict[Label, ArmConfig] = {
    ON_POLICY: ArmConfig(pairs="on_policy"),
    IPO: ArmConfig(objective=IPOConfig()),
    ON_POLICY_IPO: ArmConfig(objective=IPOConfig(), pairs="on_policy"),
}
"""Trainings on the policy's own pairs, and what they are compared with besides."""


class ReproduceParameters(PairComparison):
    """What a person chooses when asking which of the papers' findings appear."""

    name: Name = "reproduce"
    learning_rates: dict[Label, Annotated[float, Field(gt=0)]] = Field(
        {},
        description="By training, in place of the shared one, for a loss whose push has another "
        "size: ipo, on-policy-ipo.",
    )

    @model_validator(mode="after")
    def _watches_sft(self) -> ReproduceParameters:
        if not self.sft.probe_every:
            raise ConfigError(
                "sft.probe_every", 0, "claims on SFT are about its paths; set the steps between"
            )
        known = ARMS | ON_POLICY_ARMS
        for label in self.learning_rates:
            if label not in known:
                raise ConfigError("learning_rates", label, f"name a training: {', '.join(known)}")
        return self

    @property
    def arms(self) -> dict[Label, ArmConfig]:
        """The trainings that are made; those on own pairs where something ranks them."""
        made = ARMS | ON_POLICY_ARMS if self.ranks_answers else ARMS
        return {
            label: arm.model_copy(update={"learning_rate": self.learning_rates.get(label)})
            for label, arm in made.items()
        }
