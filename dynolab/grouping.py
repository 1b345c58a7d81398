"""Values by key."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def attributes(rows: Iterable[object], name: str) -> list[Any]:
    """One attribute of every row."""
    return [getattr(row, name) for row in rows]


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Every key's values; keys and values keep their order."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
