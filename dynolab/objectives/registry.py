"""Objectives by name: the unions of their settings that trainings, forces and study files take."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import Field

from dynolab.objectives.base import Objective
from dynolab.objectives.dpo import DPOConfig, HingeConfig, RobustDPOConfig, SPINConfig
from dynolab.objectives.grpo import GRPOConfig, SimKOConfig
from dynolab.objectives.pair_losses import (
    CPOConfig,
    CustomConfig,
    IPOConfig,
    ORPOConfig,
    SimPOConfig,
    SLiCConfig,
    SPPOConfig,
)
from dynolab.objectives.pairs import PairConfig
from dynolab.objectives.registration import REGISTERED as REGISTERED
from dynolab.objectives.sft import KTOConfig, SFTConfig, SFTExtendedConfig

# The settings that are public names of `dynolab`.
__all__ = [
    "CPOConfig",
    "CustomConfig",
    "DPOConfig",
    "GRPOConfig",
    "HingeConfig",
    "IPOConfig",
    "KTOConfig",
    "ORPOConfig",
    "RobustDPOConfig",
    "SFTConfig",
    "SFTExtendedConfig",
    "SLiCConfig",
    "SPINConfig",
    "SPPOConfig",
    "SimKOConfig",
    "SimPOConfig",
]

RowConfig = (
    SFTConfig
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
    | SFTExtendedConfig
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


def names_of(union: Any, *, base: type = object, in_forms: bool = False) -> tuple[str, ...]:
    """Names of a union's objectives, in its order.

    **Arguments:** `base`: only those whose settings are of this class; `in_forms`: only those that
    forms offer.
    """
    configs = [config for config in get_args(union) if issubclass(config, base)]
    names = [config.model_fields["name"].default for config in configs]
    return tuple(name for name in names if REGISTERED[name].in_forms or not in_forms)


PAIR_OBJECTIVES = frozenset(names_of(RowConfig, base=PairConfig))
"""Names of the losses that compare a chosen with a rejected answer."""


def build_objective(config: AnyConfig) -> Objective:
    """Builds the objective of a config."""
    return REGISTERED[config.name].build(config)


def changed_settings(objective: AnyConfig) -> dict[str, Any]:
    """An objective's name, and its settings that are not the defaults, as a study file has them."""
    return {"name": objective.name} | objective.model_dump(mode="json", exclude_defaults=True)
