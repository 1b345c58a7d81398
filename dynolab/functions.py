"""Functions that settings name by dotted path, of modules that the environment allows."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from dynolab.errors import ConfigError

ALLOWED = "DYNOLAB_MODULES"
"""Environment variable: comma-separated modules whose functions settings may name."""


def named_function(
    field: str, name: str, built_in: Mapping[str, Callable[..., Any]]
) -> Callable[..., Any]:
    """Returns a built-in function by name, or one of an allowed module by dotted path.

    **Raises:** `ConfigError` for an unknown one, and for one outside the modules that the
    environment allows, before importing it.
    """
    if name in built_in:
        return built_in[name]
    module, _, function = name.rpartition(".")
    allowed = [entry.strip() for entry in os.environ.get(ALLOWED, "").split(",") if entry.strip()]
    if module not in allowed:
        choices = f"use one of {', '.join(built_in)}, or list" if built_in else "list"
        raise ConfigError(
            field,
            name,
            f"{choices} the function's module in the environment variable {ALLOWED} "
            f"(now: {', '.join(allowed) or 'empty'})",
        )
    try:
        attribute = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise ConfigError(field, name, f"module {module} cannot be imported: {error}") from error
    if not callable(attribute):
        raise ConfigError(field, name, f"module {module} has no function {function!r}")
    found: Callable[..., Any] = attribute
    return found
