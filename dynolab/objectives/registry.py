"""Objectives by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, get_args

from pydantic import Field

from dynolab.objectives.base import Objective
from dynolab.objectives.dpo import DPO, DPOConfig, HingeConfig, RobustDPOConfig, SPINConfig
from dynolab.objectives.grpo import GRPO, GRPOConfig, SimKO, SimKOConfig
from dynolab.objectives.pair_losses import (
    CPO,
    IPO,
    ORPO,
    SPPO,
    CPOConfig,
    Custom,
    CustomConfig,
    IPOConfig,
    ORPOConfig,
    SimPO,
    SimPOConfig,
    SLiC,
    SLiCConfig,
    SPPOConfig,
)
from dynolab.objectives.pairs import PairConfig
from dynolab.objectives.sft import KTO, SFT, KTOConfig, SFTConfig, SFTExtended, SFTExtendedConfig

RowConfig = (
    SFTConfig
    | SFTExtendedConfig
    | DPOConfig
    | RobustDPOConfig
    | IPOConfig
    | SLiCConfig
    | HingeConfig
    | SimPOConfig
    | SPPOConfig
    | CPOConfig
    | ORPOConfig
    | CustomConfig
    | KTOConfig
)
GroupConfig = GRPOConfig | SimKOConfig
AnyConfig = RowConfig | GroupConfig | SPINConfig

RowObjectiveConfig = Annotated[RowConfig, Field(discriminator="name")]
"""Objectives that train on rows of answers (`collate_examples`)."""
GroupObjectiveConfig = Annotated[GroupConfig, Field(discriminator="name")]
"""Objectives that train on groups of sampled completions (`collate_groups`)."""
ObjectiveConfig = Annotated[AnyConfig, Field(discriminator="name")]
"""Every objective. SPIN trains on rows whose rejected answers it samples itself."""

_CLASSES: dict[str, Callable[[Any], Objective]] = {
    "sft": SFT,
    "sft_extended": SFTExtended,
    "dpo": DPO,
    "robust_dpo": lambda config: _dpo(config, "robust"),
    "ipo": IPO,
    "slic": SLiC,
    "hinge": lambda config: _dpo(config, "hinge"),
    "simpo": SimPO,
    "sppo": SPPO,
    "grpo": GRPO,
    "simko": SimKO,
    "cpo": CPO,
    "orpo": ORPO,
    "custom": Custom,
    "kto": KTO,
    "spin": lambda config: _dpo(config, "sigmoid"),
}


PAIR_OBJECTIVES = frozenset(
    config.model_fields["name"].default
    for config in get_args(RowConfig)
    if issubclass(config, PairConfig)
)
"""Names of the losses that compare a chosen with a rejected answer."""


def _dpo(config: RobustDPOConfig | HingeConfig | SPINConfig, loss_type: str) -> DPO:
    """A loss of DPO that also has a name of its own."""
    settings = config.model_dump(exclude={"name", "designed_dose"})
    return DPO(DPOConfig(**settings, loss_type=(loss_type,)))


def build_objective(config: AnyConfig) -> Objective:
    """Builds the objective of a config."""
    return _CLASSES[config.name](config)


def changed_settings(objective: AnyConfig) -> dict[str, Any]:
    """An objective's name, and its settings that are not the defaults, as a study file has them."""
    return {"name": objective.name} | objective.model_dump(mode="json", exclude_defaults=True)
