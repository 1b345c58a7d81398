"""What helped, in sentences: each remedy's chosen answers, as they end and at the same margin."""

from __future__ import annotations

from collections.abc import Mapping

from dynolab.comparisons.arm_table import ArmTable
from dynolab.report.mitigation.matched import matched_table_of
from dynolab.report.text import join, mean_and_ends, with_interval
from dynolab.results.arms import ComparedArms
from dynolab.statistics import Interval, clear


def answer(compared: ComparedArms, figures: ArmTable) -> list[str]:
    """The page's answer; empty where there is nothing to compare."""
    baseline = compared.baseline
    own = figures.mean(baseline, "train/chosen")
    if not own.n or not compared.others:
        return []
    margin = figures.mean(baseline, "train/margin")
    sentences = [
        f"Under {baseline} the chosen answers changed by {with_interval(own)} nats, while it "
        f"learned a margin of {with_interval(margin)}."
    ]
    if len(compared.seeds) == 1:
        return [*sentences, "One seed decides nothing: compare over several (`seeds`)."]
    ends = {
        arm: figures.difference(arm, baseline, "train/chosen")
        for arm in compared.others
        if figures.difference(arm, baseline, "train/chosen").n
    }
    margins = {arm: figures.mean(arm, "train/margin") for arm in ends}
    sentences.append(f"They end {_compared(ends, margins)}.")
    table = matched_table_of(compared)
    matched = {arm: change for arm in ends if (change := table.mean(arm, "matched/chosen")).n}
    if matched:
        sentences.append(
            f"Where both have learned the same margin, they are {_compared(matched)}: what an arm "
            "keeps up beyond that, it keeps by learning less."
        )
    else:
        sentences.append(
            f"No arm and {baseline} reach the same margin of a nat: what is better here may only "
            "have learned less."
        )
    return sentences


def _compared(
    changes: Mapping[str, Interval], margins: Mapping[str, Interval] | None = None
) -> str:
    """Which arms' chosen answers are clearly higher or lower than the baseline's, and which not."""
    parts = []
    for sign, how in ((1, "higher"), (-1, "lower")):
        arms = [
            f"{arm} ({with_interval(change)} nats{_margin(arm, margins)})"
            for arm, change in changes.items()
            if clear(change) and sign * change.mean > 0
        ]
        if arms:
            parts.append(f"clearly {how} with {join(arms)}")
    unclear = [arm for arm, change in changes.items() if not clear(change)]
    if unclear:
        parts.append(f"not clearly different with {join(unclear)}")
    return "; ".join(parts)


def _margin(arm: str, margins: Mapping[str, Interval] | None) -> str:
    return f", at a margin of {mean_and_ends(margins[arm])[0]}" if margins else ""
