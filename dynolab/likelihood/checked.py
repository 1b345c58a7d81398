"""Collects the results of checks on models, for the manifest of a stage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

Checks = dict[str, dict[str, float | str]]
"""Figures by model and check; `fails` instead of one that is not finite."""

CHECKS = "checks.json"
"""Log file of a training that carries the checks from its ranks to its supervisor."""

_kept: ContextVar[Checks | None] = ContextVar("checks", default=None)


@contextmanager
def checks_kept() -> Iterator[Checks]:
    """Within it, `note_check` writes into the dictionary."""
    checks: Checks = {}
    token = _kept.set(checks)
    try:
        yield checks
    finally:
        _kept.reset(token)


def note_check(name: str, figures: Mapping[str, float | str]) -> None:
    """Records a check's figures; does nothing outside `checks_kept`."""
    checks = _kept.get()
    if checks is not None:
        checks[name] = {key: _rounded(value) for key, value in figures.items()}


def _rounded(value: float | str) -> float | str:
    if isinstance(value, str):
        return value
    return float(f"{value:.2g}") if math.isfinite(value) else "fails"
