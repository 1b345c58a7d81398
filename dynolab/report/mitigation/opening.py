"""What helped, in sentences: each remedy's chosen answers, as they end and at the same margin."""

from __future__ import annotations

from collections.abc import Mapping

from dynolab.comparisons.arm_table import ArmTable
from dynolab.comparisons.matched import LEAST_MARGIN
from dynolab.report.mitigation.matched import matched_table_of
from dynolab.report.text import join, mean_and_ends, number, with_interval
from dynolab.results.arms import ComparedArms
from dynolab.statistics import Interval, clear


def answer(compared: ComparedArms, figures: ArmTable) -> list[str]:
    """The page's answer; empty where there is nothing to compare."""
    baseline = compared.baseline
    own = figures.mean(baseline, "train/chosen")
    if not own.n or not compared.others:
        return []
    sentences = [
        f"Under {baseline} the chosen answers of training pairs changed by {with_interval(own)} "
        f"nats{_margin(baseline, figures)}."
    ]
    useless = unlearned(compared, figures)
    learned = [arm for arm in compared.others if arm not in useless]
    ends = {arm: figures.difference(arm, baseline, "train/chosen") for arm in learned}
    ends = {arm: change for arm, change in ends.items() if change.n}
    if len(compared.seeds) == 1:
        shown = [
            f"{arm} {mean_and_ends(change)[0]}{_margin(arm, figures)}"
            for arm, change in ends.items()
        ]
        sentences.append(
            f"Against that, over one seed, which decides nothing: {'; '.join(shown) or 'no arm'}."
        )
    elif ends:
        sentences.append(f"They end {_compared(ends, figures)}.")
    table = matched_table_of(compared)
    same = {arm: table.mean(arm, "matched/chosen") for arm in ends}
    matched = {arm: change for arm, change in same.items() if change.n > 1}
    if matched:
        sentences.append(f"Where both have learned the same margin, they are {_compared(matched)}.")
    elif ends and not _only_others_learned(compared, figures):
        sentences.append(
            f"None of them shares a margin of {number(LEAST_MARGIN)} nats or more with {baseline}: "
            "what is better may only have learned less. Train longer (training.steps)."
        )
    if others := [f"{arm}{_margin(arm, figures)}" for arm in useless]:
        sentences.append(
            f"{join(others)} did not learn the preference: rejected answers rose as much as chosen "
            "ones or more. A dose nearer to 1 pushes them down harder."
        )
    return sentences


def _only_others_learned(compared: ComparedArms, figures: ArmTable) -> bool:
    """The baseline is no training to compare with, such as the start of all others."""
    own, *others = (
        figures.mean(arm, "train/margin").mean for arm in (compared.baseline, *compared.others)
    )
    return own < LEAST_MARGIN <= max(others, default=0.0)


def unlearned(compared: ComparedArms, figures: ArmTable) -> list[str]:
    """Arms that do not prefer the chosen answers more than before, whatever else they do."""
    margins = {arm: figures.mean(arm, "train/margin") for arm in compared.arms}
    return [arm for arm, margin in margins.items() if margin.n and margin.mean <= 0]


def _compared(changes: Mapping[str, Interval], figures: ArmTable | None = None) -> str:
    """Which arms' chosen answers are clearly higher or lower than the baseline's, and which not."""
    parts = []
    for sign, how in ((1, "higher"), (-1, "lower")):
        arms = [
            f"{arm} ({with_interval(change)} nats{_margin(arm, figures) if figures else ''})"
            for arm, change in changes.items()
            if clear(change) and sign * change.mean > 0
        ]
        if arms:
            parts.append(f"clearly {how} with {join(arms)}")
    unclear = [arm for arm, change in changes.items() if not clear(change)]
    if unclear:
        parts.append(f"not clearly different with {join(unclear)}")
    return "; ".join(parts)


def _margin(arm: str, figures: ArmTable) -> str:
    """The margins that an arm learned; what it did not learn held out shows in the second."""
    parts = [
        f"{mean_and_ends(margin)[0]} {place}"
        for split, place in (("train", "in training"), ("heldout", "held out"))
        if (margin := figures.mean(arm, f"{split}/margin")).n
    ]
    return f", at a margin of {' and '.join(parts)}" if parts else ""
