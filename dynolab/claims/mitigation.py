"""Claims about remedies against squeezing, and their verdicts.

Figures are means over seeds with t-intervals, paired by seed with the baseline. One seed gives no
interval, so every outcome is unclear; so is that of a few pairs or prompts (`LEAST_COUNT`), because
the interval over seeds does not say what others would do.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

from dynolab.claims.verdict import Claimed, Verdict, above, below, judged
from dynolab.comparisons.arm_table import ArmTable
from dynolab.statistics import Interval

WON = "heldout/won"
EVEN = 0.5
"""Share of contests won at which an arm is as good as the baseline."""


def assess_remedies(arms: Sequence[str], baseline: str, table: ArmTable) -> tuple[Verdict, ...]:
    """Judges all claims about the arms.

    More of their answers are right, where that can be checked; their gap grows less than the
    baseline's, also per nat of margin learned; their chosen answers end higher; and their answers
    to held-out prompts are preferred.
    """
    return tuple(
        verdict
        for arm in arms
        if arm != baseline
        for verdict in judged(arm, arm, _claims(arm, baseline, table))
    )


_RIGHT = (("heldout", "right_heldout", "held-out"), ("train", "right", "training"))
"""Split, the claim's name, and what it calls the prompts."""


def _claims(arm: str, baseline: str, table: ArmTable) -> list[Claimed]:
    against = f"{arm} − {baseline}"
    claims: list[Claimed] = [
        (
            name,
            f"More answers to {prompts} prompts are right than under {baseline}",
            "> 0",
            above(
                f"Δ share: {against}", _difference(arm, baseline, f"{split}/right", table), unit=""
            ),
        )
        for split, name, prompts in _RIGHT
        if f"{split}/right" in table.names
    ]
    gap, gap_by_margin, chosen = (
        _difference(arm, baseline, f"train/{name}", table)
        for name in ("gap", "gap_by_margin", "chosen")
    )
    return [
        *claims,
        (
            "gap",
            f"The gap y* − y⁺ grows less than under {baseline}",
            "< 0",
            below(f"Δ gap: {against}", gap),
        ),
        (
            "gap_by_margin",
            "It grows less by the nat of margin, too",
            "< 0",
            below(f"Δ gap/Δ margin: {against}", gap_by_margin, unit="nats by the nat"),
        ),
        (
            "chosen",
            f"The chosen answer ends higher than under {baseline}",
            "> 0",
            above(f"Δ chosen: {against}", chosen),
        ),
        (
            "won",
            f"Its answers to held-out prompts are preferred to {baseline}'s",
            f"> {EVEN:g}",
            above("share of contests", _known(table.mean(arm, WON), WON, table), EVEN, unit=""),
        ),
    ]


def _difference(arm: str, baseline: str, name: str, table: ArmTable) -> Interval:
    return _known(table.difference(arm, baseline, name), name, table)


def _known(interval: Interval, name: str, table: ArmTable) -> Interval:
    """The interval, without its ends if the figure is of a few pairs or prompts alone."""
    return Interval(interval.mean, nan, nan, interval.n) if table.few(name) else interval
