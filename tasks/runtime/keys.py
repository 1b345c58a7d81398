"""Stage keys: a hash of everything that determines a stage's result."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from datetime import date
from enum import Enum
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from dynolab.errors import ConfigError
from dynolab.functions import Sources

SOURCES = "source_sha256"
"""Name of the digests among the settings of whatever names a user's function."""


def canonical(value: object, field: str = "config") -> Any:
    """Convert a config value to JSON, to the same value in every process.

    A sub-model contributes all fields of its own class, also those that the class which the field
    declares does not have (pydantic's `model_dump` would drop them), without those that
    `exclude_if` excludes. Sets are sorted. Raises ConfigError naming the field for a value that
    JSON cannot represent.
    """
    if isinstance(value, BaseModel):
        fields = {
            name: getattr(value, name)
            for name, info in type(value).model_fields.items()
            if info.exclude_if is None or not info.exclude_if(getattr(value, name))
        }
        # Fields that are not declared, of a class that allows any.
        return canonical(fields | (value.model_extra or {}), field)
    if isinstance(value, Enum):
        return canonical(value.value, field)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(field, value, "give a finite number (null for no value)")
        return value
    if isinstance(value, PurePath):
        return value.as_posix()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: canonical(value[name], f"{field}.{name}") for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [canonical(item, f"{field}.{i}") for i, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return sorted((canonical(item, field) for item in value), key=_dump)
    raise ConfigError(field, value, f"a {type(value).__name__} cannot be part of a stage's key")


def without_sources(document: Any, sources: Sources) -> Any:
    """A canonical config without the digests of users' functions; adds those to `sources`."""
    if isinstance(document, list):
        return [without_sources(item, sources) for item in document]
    if not isinstance(document, dict):
        return document
    sources.update(document.get(SOURCES) or {})
    return {
        name: without_sources(value, sources) for name, value in document.items() if name != SOURCES
    }


def stage_key(
    name: str,
    version: int,
    config: BaseModel,
    operational: Collection[str],
    inputs: Mapping[str, str],
) -> str:
    """SHA-256 of the canonical JSON of everything that determines a stage's result.

    **Arguments:** `operational`: dotted config fields that do not affect it (addresses, timeouts,
    logging). `inputs`: content digests by input name.
    """
    document, fields = canonical(config), type(config).model_fields
    for dotted in operational:
        # Below the first name there may be an optional sub-model, whose fields are not known here.
        if dotted.partition(".")[0] not in fields:
            choices = ", ".join(sorted(fields))
            raise ConfigError("operational", dotted, f"is not a field; choose from: {choices}")
        _drop(document, dotted)
    content = {"stage": name, "version": version, "config": document, "inputs": dict(inputs)}
    return hashlib.sha256(_dump(content).encode()).hexdigest()


def _drop(document: dict[str, Any], dotted: str) -> None:
    """Delete the value at a dotted name, if there is one."""
    *parents, leaf = dotted.split(".")
    for name in parents:
        inner = document.get(name)
        if not isinstance(inner, dict):  # an optional sub-model that is not set
            return
        document = inner
    document.pop(leaf, None)


def _dump(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
