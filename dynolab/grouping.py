"""Values by key, and some of many."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
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


def evenly_spaced(values: Sequence[Value], most: int) -> list[Value]:
    """At most `most` of the values; from two on both ends are among them, one is the last."""
    if len(values) <= most:
        return list(values)
    if most <= 1:
        return list(values)[-1:] * most
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
