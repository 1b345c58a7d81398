"""Every registered objective, which tests take from here, so that a new one is among them."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel

from dynolab.objectives import CustomConfig, GRPOConfig, SimKOConfig
from dynolab.objectives.registry import RowConfig

REQUIRED: dict[type[BaseModel], dict[str, Any]] = {
    CustomConfig: {"loss": "tests.objectives.losses.margin"},
    GRPOConfig: {"max_tokens": 8},
    SimKOConfig: {"max_tokens": 8},
}
"""Settings without which an objective, or one of its choices, cannot be."""


def defaults(union: Any) -> dict[str, Any]:
    """Every objective of a union under its default settings, by its name."""
    configs = [kind(**REQUIRED.get(kind, {})) for kind in get_args(union)]
    return {config.name: config for config in configs}


ON_ROWS = defaults(RowConfig)
