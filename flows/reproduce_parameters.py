"""Parameters of the flow `reproduce`: the papers' trainings, on which model and data."""

from __future__ import annotations

from pydantic import model_validator

from dynolab.errors import ConfigError
from dynolab.probes.reproduction import AFTER_EXTENDED, AFTER_SFT, FROM_BASE, ON_POLICY
from flows.comparison import Label
from flows.pair_arms import PairComparison
from flows.parameters import Name
from tasks.arm import ArmConfig

ARMS: dict[Label, ArmConfig] = {
    FROM_BASE: ArmConfig(start="base"),
    AFTER_SFT: ArmConfig(),
    AFTER_EXTENDED: ArmConfig(start="extended"),
    ON_POLICY: ArmConfig(rejected="sampled"),
}
"""The trainings that the papers' claims are about, each by DPO."""


class ReproduceParameters(PairComparison):
    """What a person chooses when asking which of the papers' findings appear."""

    name: Name = "reproduce"

    @model_validator(mode="after")
    def _watches_sft(self) -> ReproduceParameters:
        if not self.sft.probe_every:
            raise ConfigError(
                "sft.probe_every", 0, "claims on SFT are about its paths; set the steps between"
            )
        return self
