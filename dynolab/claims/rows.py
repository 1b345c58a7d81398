"""Verdicts as rows, so that a page of another run can show them."""

from __future__ import annotations

from typing import Literal

from dynolab.claims.study import Quantity, Verdict
from dynolab.data.rows import Row
from dynolab.results.forces import Measured
from dynolab.statistics import Interval


class QuantityRow(Measured):
    """One measured number of a claim (`Quantity`)."""

    name: str
    sign: Literal[1, -1]
    mean: float
    low: float
    high: float
    n: int
    bound: float
    unit: str


class VerdictRow(Row):
    """A claim and what was found of it (`Verdict`): `verdicts.jsonl`."""

    id: str
    stage: str
    claim: str
    expected: str
    quantities: tuple[QuantityRow, ...]

    @classmethod
    def of(cls, verdict: Verdict) -> VerdictRow:
        """The row of a verdict whose quantities are all measured with intervals."""
        quantities = tuple(
            QuantityRow(
                name=one.name,
                sign=one.sign,
                mean=one.interval.mean,
                low=one.interval.low,
                high=one.interval.high,
                n=one.interval.n,
                bound=one.bound,
                unit=one.unit,
            )
            for one in verdict.quantities
            if isinstance(one, Quantity)
        )
        return cls(
            id=verdict.id,
            stage=verdict.stage,
            claim=verdict.claim,
            expected=verdict.expected,
            quantities=quantities,
        )

    @property
    def verdict(self) -> Verdict:
        """The verdict that it is the row of."""
        quantities = tuple(
            Quantity(
                one.name,
                one.sign,
                Interval(one.mean, one.low, one.high, one.n),
                one.bound,
                one.unit,
            )
            for one in self.quantities
        )
        return Verdict(self.id, self.stage, self.claim, self.expected, quantities)
