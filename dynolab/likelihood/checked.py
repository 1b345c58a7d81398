"""Collects what was measured of models, for the manifest of a stage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

Checks = dict[str, dict[str, float | str]]
"""Figures by model and check; `fails` where there is none."""

CHECKS = "checks.json"
"""Name of the file among a training's logs that brings them from its ranks to its supervisor."""

_kept: ContextVar[Checks | None] = ContextVar("checks", default=None)


@contextmanager
def checks_kept() -> Iterator[Checks]:
    """Within it, all that is noted here comes into the dictionary."""
    checks: Checks = {}
    token = _kept.set(checks)
    try:
        yield checks
    finally:
        _kept.reset(token)


def note_check(what: str, figures: Mapping[str, float | str]) -> None:
    """Notes a check's figures, where somebody keeps them."""
    checks = _kept.get()
    if checks is not None:
        checks[what] = {name: _short(value) for name, value in figures.items()}


def _short(value: float | str) -> float | str:
    if isinstance(value, str):
        return value
    return float(f"{value:.2g}") if math.isfinite(value) else "fails"
