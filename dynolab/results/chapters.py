"""The rows that a chapter's verdicts are kept in."""

from __future__ import annotations

from typing import Literal

from dynolab.results.forces import Measured


class MeasuredClaim(Measured):
    """One number of a claim with its 95% interval over `n` seeds, examples or cases.

    `violations` counts the cases against a claim that is made of all of them; there the mean is
    their share.
    """

    name: str
    mean: float
    low: float
    high: float
    n: int
    unit: str = ""
    violations: int | None = None


class ClaimRow(Measured):
    """A claim, what was expected and measured, and the verdict: `claims.jsonl`."""

    id: str
    topic: str
    claim: str
    expected: str
    measured: tuple[MeasuredClaim, ...]
    verdict: Literal["holds", "fails", "unclear", "not measured"]
