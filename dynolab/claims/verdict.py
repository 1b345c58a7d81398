"""Verdicts: claims with their measured figures, and whether the figures support them.

A claim holds if every figure's interval lies on the expected side of its bound, fails if one lies
wholly on the other side, and is unclear otherwise. One violation refutes a claim about every case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal

from pydantic import ConfigDict, Field

from dynolab.results.forces import Measured
from dynolab.statistics import Interval, all_equal_and_few, share_interval

Outcome = Literal["holds", "fails", "unclear", "not measured"]
Sign = Literal[1, -1]

APPEARS: Mapping[Outcome, str] = {
    "holds": "appears",
    "fails": "does not",
    "unclear": "unclear",
    "not measured": "not measured",
}
"""Names of outcomes on pages and in summaries of language models' trainings."""

UNEXPLAINED_SHARE = 0.1
"""Forces count as explaining a change if `1 − R²` is below this."""


class Measurement(Measured):
    """One measured number of a claim with its 95% interval over `n` seeds, pairs or cases.

    `pairs`: how many different ones, where the interval is over seeds and pairs.
    For a claim about every case, `violations` counts the cases against it, and the mean is their
    share. `outcome` is that of this figure alone; files keep only the verdict's.
    """

    name: str
    mean: float
    low: float
    high: float
    n: int
    pairs: int | None = Field(None, exclude_if=lambda pairs: pairs is None)
    unit: str = ""
    violations: int | None = None
    outcome: Outcome | None = Field(None, exclude=True)

    @property
    def interval(self) -> Interval:
        """The mean with its interval."""
        return Interval(self.mean, self.low, self.high, self.n, self.pairs)


class Verdict(Measured):
    """A claim, its measurements, and the outcome: a line of `claims.jsonl`.

    `topic` is the training, arm or subject of the claim.
    """

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    id: str
    topic: str
    claim: str
    expected: str
    measured: tuple[Measurement, ...]
    outcome: Outcome = Field(alias="verdict")

    @classmethod
    def of(cls, id_: str, topic: str, claim: str, expected: str, *figures: Measurement) -> Verdict:
        """The verdict on a claim from its figures; "not measured" without any."""
        outcomes = {figure.outcome for figure in figures}
        outcome: Outcome = "holds" if figures else "not measured"
        worst_last: tuple[Outcome, ...] = ("unclear", "fails", "not measured")
        for worse in worst_last:
            if worse in outcomes:
                outcome = worse
        return cls(
            id=id_,
            topic=topic,
            claim=claim,
            expected=expected,
            measured=figures,
            outcome=outcome,
        )

    def summary(self) -> dict[str, Any]:
        """The verdict as stored in `summary.json`: figures by name, without NaN."""
        return {
            "id": self.id,
            "claim": self.claim,
            "expected": self.expected,
            "outcome": APPEARS[self.outcome],
            "measured": {figure.name: figure.interval.as_dict() for figure in self.measured},
        }


Claimed = tuple[str, str, str, *tuple[Measurement, ...]]
"""A claim: its name, its text, what is expected, and its figures."""


def judged(prefix: str, topic: str, claims: Iterable[Claimed]) -> list[Verdict]:
    """The verdicts on claims, each a row of its name, text, expected value and figures.

    **Arguments:** `prefix`: first part of the claims' ids, before their names.
    """
    return [
        Verdict.of(f"{prefix}/{name}", topic, claim, expected, *figures)
        for name, claim, expected, *figures in claims
    ]


def on_side(
    sign: Sign, name: str, interval: Interval, bound: float = 0.0, *, unit: str = "nats"
) -> Measurement:
    """A figure that is expected above (1) or below (−1) its bound."""
    ends = (interval.low, interval.high)
    worst, best = sorted(sign * (end - bound) for end in ends)
    outcome: Outcome = "fails" if best <= 0 else "unclear"
    if worst > 0:
        outcome = "holds"
    if all_equal_and_few(interval) and interval.mean != bound:
        outcome = "unclear"
    if interval.n == 0:
        outcome = "not measured"
    return Measurement(name=name, **vars(interval), unit=unit, outcome=outcome)


above = partial(on_side, 1)
"""A figure that is expected above its bound."""

below = partial(on_side, -1)
"""A figure that is expected below its bound."""


def never(name: str, violations: int, cases: int) -> Measurement:
    """A claim about every case, tested on random ones: the share of violations with its interval.

    A single violation refutes it.
    """
    share = share_interval(violations, cases)
    outcome: Outcome = "fails" if violations else "holds"
    return Measurement(
        name=name,
        **vars(share),
        violations=violations,
        outcome=outcome if cases else "not measured",
    )


def explains(id_: str, topic: str, claim: str, unexplained: Interval) -> Verdict:
    """The verdict that forces explain a change: `1 − R² < 0.1`."""
    figure = below("1 − R²", unexplained, UNEXPLAINED_SHARE, unit="")
    return Verdict.of(id_, topic, claim, f"1 − R² < {UNEXPLAINED_SHARE}", figure)
