"""What remedies against squeezing are hoped to do, and what a comparison shows of it.

Quantities are means over seeds with t-intervals, paired by seed with the baseline; a claim is
judged as those of `verdicts.py` are. With one seed there is no interval, and all is unclear.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dynolab.claims.study import Quantity, Verdict
from dynolab.comparisons.group_arms import ArmTable

EVEN = 0.5
"""Share of contests that an arm wins which is as good as the baseline."""


def assess_remedies(arms: Sequence[str], baseline: str, table: ArmTable) -> tuple[Verdict, ...]:
    """All claims about the arms: their gap grows less than the baseline's, also by the nat of
    margin that they learn, their chosen answers end higher, and their answers to held-out prompts
    are preferred."""
    return tuple(
        verdict for arm in arms if arm != baseline for verdict in _of_arm(arm, baseline, table)
    )


def _of_arm(arm: str, baseline: str, table: ArmTable) -> Iterator[Verdict]:
    gap = table.difference(arm, baseline, "train/gap")
    yield Verdict(
        f"{arm}/gap",
        arm,
        f"The gap y* − y⁺ grows less than under {baseline}",
        "< 0",
        (Quantity(f"Δ gap: {arm} − {baseline}", -1, gap),),
    )
    cost = table.difference(arm, baseline, "train/gap_by_margin")
    yield Verdict(
        f"{arm}/gap_by_margin",
        arm,
        "It grows less by the nat of margin, too",
        "< 0",
        (Quantity(f"Δ gap/Δ margin: {arm} − {baseline}", -1, cost, unit="nats by the nat"),),
    )
    chosen = table.difference(arm, baseline, "train/chosen")
    yield Verdict(
        f"{arm}/chosen",
        arm,
        f"The chosen answer ends higher than under {baseline}",
        "> 0",
        (Quantity(f"Δ chosen: {arm} − {baseline}", 1, chosen),),
    )
    won = table.mean(arm, "heldout/won")
    yield Verdict(
        f"{arm}/won",
        arm,
        f"Its answers to held-out prompts are preferred to {baseline}'s",
        f"> {EVEN:g}",
        (Quantity("share of contests", 1, won, EVEN, ""),),
    )
