"""Objectives by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from dynolab.objectives.base import Objective
from dynolab.objectives.dpo import DPO, DPOConfig
from dynolab.objectives.sft import SFT, SFTConfig

ObjectiveConfig = Annotated[SFTConfig | DPOConfig, Field(discriminator="name")]

_CLASSES: dict[str, Callable[[Any], Objective]] = {"sft": SFT, "dpo": DPO}


def build_objective(config: SFTConfig | DPOConfig) -> Objective:
    """The objective that a config names."""
    return _CLASSES[config.name](config)
