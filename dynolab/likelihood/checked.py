"""Checks of ways to compute against a model's own forward, and their results for a manifest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Checks = dict[str, dict[str, float | str]]
"""Figures by model and check; `fails` instead of one that is not finite."""

CHECKS = "checks.json"
"""Log file of a training that carries the checks from its ranks to its supervisor."""

Way = TypeVar("Way", bound=str)


@dataclass(frozen=True)
class ModelCheck(Generic[Way]):
    """How far some ways to compute a model's values lie from its own forward.

    `errors` by way, infinite for one that fails; `reasons` says why it fails. `tolerance` is the
    largest error that rounding explains.
    """

    model: str
    tolerance: float
    errors: dict[Way, float]
    reasons: dict[Way, str] = field(default_factory=dict)

    def agrees(self, way: Way) -> bool:
        """Whether the way gives the model's own values."""
        return self.errors[way] <= self.tolerance

    def note(self, what: str) -> None:
        """Records the errors, under the model and what was checked."""
        figures = {str(way): error for way, error in self.errors.items()}
        note_check(f"{self.model} {what}", {"tolerance": self.tolerance, **figures})


def try_ways(
    ways: Mapping[Way, Callable[[], float]],
) -> tuple[dict[Way, float], dict[Way, str]]:
    """The error of each way, and the reasons of those that fail."""
    errors: dict[Way, float] = {}
    reasons: dict[Way, str] = {}
    for way, error_of in ways.items():
        try:
            errors[way] = error_of()
        # A family's code may raise anything on what it was not written for.
        except Exception as error:
            errors[way] = math.inf
            reasons[way] = f"{type(error).__name__}: {first_line(error)}"
    return errors, reasons


def first_line(error: Exception) -> str:
    """Of an error's message."""
    return str(error).partition("\n")[0]


_checks: ContextVar[Checks | None] = ContextVar("checks", default=None)


@contextmanager
def checks_kept() -> Iterator[Checks]:
    """Within it, `note_check` writes into the dictionary."""
    checks: Checks = {}
    token = _checks.set(checks)
    try:
        yield checks
    finally:
        _checks.reset(token)


def note_check(name: str, figures: Mapping[str, float | str]) -> None:
    """Records a check's figures; does nothing outside `checks_kept`."""
    checks = _checks.get()
    if checks is not None:
        checks[name] = {key: _rounded(value) for key, value in figures.items()}


def _rounded(value: float | str) -> float | str:
    if isinstance(value, str):
        return value
    return float(f"{value:.2g}") if math.isfinite(value) else "fails"
