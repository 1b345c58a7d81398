"""The built-in worlds by name."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from dynolab.data.world.rows import WorldRows
from dynolab.data.world.strategies import StrategiesConfig, build_strategies
from dynolab.data.world.sums import SumsConfig, build_sums
from dynolab.data.world.world import WorldConfig, build_world


def _named(settings: Any) -> Any:
    """Settings without a name are those of the world of facts."""
    return {"name": "facts"} | settings if isinstance(settings, dict) else settings


AnyWorldConfig = Annotated[
    Annotated[WorldConfig | StrategiesConfig | SumsConfig, Field(discriminator="name")],
    BeforeValidator(_named),
]
"""Settings of any built-in world."""


def build_any_world(config: WorldConfig | StrategiesConfig | SumsConfig) -> WorldRows:
    """Generates a world; equal configs give equal rows, on every machine."""
    if isinstance(config, StrategiesConfig):
        return build_strategies(config)
    return build_sums(config) if isinstance(config, SumsConfig) else build_world(config)
