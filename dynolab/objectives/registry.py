"""Objectives by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from dynolab.objectives.base import Objective
from dynolab.objectives.dpo import DPO, DPOConfig, RobustDPO, RobustDPOConfig
from dynolab.objectives.grpo import GRPO, GRPOConfig
from dynolab.objectives.hinge import Hinge, HingeConfig, SLiC, SLiCConfig
from dynolab.objectives.ipo import IPO, IPOConfig
from dynolab.objectives.pairs import PairObjective
from dynolab.objectives.sft import SFT, SFTConfig, SFTExtended, SFTExtendedConfig
from dynolab.objectives.simko import SimKO, SimKOConfig
from dynolab.objectives.simpo import SimPO, SimPOConfig
from dynolab.objectives.spin import SPINConfig, build_spin
from dynolab.objectives.sppo import SPPO, SPPOConfig

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
    "robust_dpo": RobustDPO,
    "ipo": IPO,
    "slic": SLiC,
    "hinge": Hinge,
    "simpo": SimPO,
    "sppo": SPPO,
    "grpo": GRPO,
    "simko": SimKO,
    "spin": build_spin,
}


PAIR_OBJECTIVES = frozenset(
    name
    for name, objective in _CLASSES.items()
    if isinstance(objective, type) and issubclass(objective, PairObjective)
)
"""Names of the losses that compare a chosen with a rejected answer."""


def build_objective(config: AnyConfig) -> Objective:
    """Builds the objective of a config."""
    return _CLASSES[config.name](config)


def changed_settings(objective: AnyConfig) -> dict[str, Any]:
    """An objective's name, and its settings that are not the defaults, as a study file has them."""
    return {"name": objective.name} | objective.model_dump(mode="json", exclude_defaults=True)
