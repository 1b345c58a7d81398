"""What helped, in sentences: each remedy's chosen answers, as they end and at the same margin."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from dynolab.comparisons.arm_table import ArmTable
from dynolab.comparisons.matched import LEAST_MARGIN
from dynolab.objectives.registry import changed_settings
from dynolab.report.mitigation.followed import Followed
from dynolab.report.mitigation.matched import matched_table_of
from dynolab.report.style import SPLITS
from dynolab.report.text import join, mean_and_ends, number, with_interval
from dynolab.results.arms import ArmFacts, ComparedArms
from dynolab.statistics import Interval, clear


def answer(compared: ComparedArms, figures: ArmTable) -> list[str]:
    """The page's answer; empty where there is nothing to compare."""
    baseline = compared.baseline
    own = figures.mean(baseline, "train/chosen")
    if not own.n or not compared.others:
        return []
    heldout = figures.mean(baseline, "heldout/chosen")
    also = f" and of held-out pairs by {with_interval(heldout)}" if heldout.n else ""
    sentences = [
        f"Under {baseline} the chosen answers of training pairs changed by {with_interval(own)}"
        f"{also} nats{_margin(baseline, figures)}."
    ]
    useless = unlearned(compared, figures)
    learned = [arm for arm in compared.others if arm not in useless]
    ends, unseen = (
        {
            arm: change
            for arm in learned
            if (change := figures.difference(arm, baseline, f"{split}/chosen")).n
        }
        for split in ("train", "heldout")
    )
    if len(compared.seeds) == 1:
        shown = [
            f"{arm} {mean_and_ends(change)[0]}"
            + (f" and {mean_and_ends(unseen[arm])[0]} held out" if arm in unseen else "")
            + _margin(arm, figures)
            for arm, change in ends.items()
        ]
        sentences.append(
            f"Against that, over one seed, which decides nothing: {'; '.join(shown) or 'no arm'}."
        )
    elif ends:
        few = {split: figures.few(f"{split}/chosen") for split in SPLITS}
        sentences.append(
            f"Against that, training pairs end {_compared(ends, few['train'], figures)}."
        )
        if unseen:
            sentences.append(f"Held-out pairs end {_compared(unseen, few['heldout'])}.")
        sentences += [
            f"Over {count} {SPLITS[split]} pair{'s' if count > 1 else ''} this is not decided: "
            "the intervals are over seeds, and other prompts may differ."
            for split, count in few.items()
            if count
        ]
    table = matched_table_of(compared)
    same = {arm: table.mean(arm, "matched/chosen") for arm in ends}
    matched = {arm: change for arm, change in same.items() if change.n}
    if matched and len(compared.seeds) == 1:
        shown = [f"{arm} {number(change.mean, sign=True)}" for arm, change in matched.items()]
        sentences.append(f"Where both have learned the same margin: {'; '.join(shown)}.")
    elif matched:
        few_matched = table.few("matched/chosen")
        sentences.append(
            "Where both have learned the same margin, training pairs are "
            f"{_compared(matched, few_matched)}."
        )
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
    best = _best(ends, unseen, figures)
    followed = Followed(compared)
    if followed.answers and (arm := best or followed.best(learned)):
        sentences.append(followed.sentence(arm))
    if len(compared.seeds) == 1:
        (seed,) = compared.seeds
        more = json.dumps([seed, seed + 1, seed + 2])
        sentences.append(
            f"Run it again with --set {shlex.quote(f'seeds={more}')}; this one’s trainings are "
            "kept."
        )
    if best is not None and len(compared.seeds) > 1:
        sentences.append(
            f"To train as {best} does, add to the study’s command, with a name that keeps the page "
            f"of the study as it was: --set name=trained-as-{best} {_settings(compared.arms[best])}"
        )
    return sentences


def _best(
    ends: Mapping[str, Interval], unseen: Mapping[str, Interval], figures: ArmTable
) -> str | None:
    """The arm whose chosen answers end clearly highest: held-out ones, if enough are watched."""
    decisive = {} if figures.few("train/chosen") else ends
    if unseen and not figures.few("heldout/chosen"):
        decisive = unseen
    higher = {
        arm: change.mean
        for arm, change in decisive.items()
        if clear(change) and change.mean > 0 and not (clear(ends[arm]) and ends[arm].mean < 0)
    }
    return max(higher, key=higher.__getitem__) if higher else None


def _settings(arm: ArmFacts) -> str:
    """What a study sets to train as an arm does, as options of its command."""
    settings: dict[str, Any] = {"preference.objective": changed_settings(arm.objective)}
    if arm.warmup_steps is not None:
        settings["preference.warmup_steps"] = arm.warmup_steps
    if arm.filtered_by == "id":
        settings["preference_filter"] = {"pairs": list(arm.named)}
    elif arm.filtered_by is not None:
        settings["preference_filter"] = {"by": arm.filtered_by, "drop": arm.dropped}
    options = (shlex.quote(f"{name}={json.dumps(value)}") for name, value in settings.items())
    return " ".join(f"--set {option}" for option in options)


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


def _compared(
    changes: Mapping[str, Interval], few: int = 0, figures: ArmTable | None = None
) -> str:
    """Which arms' chosen answers are clearly higher or lower than the baseline's, and which not.

    Of a `few` pairs: which are on average.
    """
    parts = []
    for sign, how in ((1, "higher"), (-1, "lower")):
        arms = [
            f"{arm} ({with_interval(change)} nats{_margin(arm, figures) if figures else ''})"
            for arm, change in changes.items()
            if (few or clear(change)) and sign * change.mean > 0
        ]
        if arms:
            shown = f"{how} on average" if few else f"clearly {how}"
            parts.append(f"{shown} under {join(arms)}")
    unclear = [
        f"{arm} ({with_interval(change)})"
        for arm, change in changes.items()
        if not (change.mean if few else clear(change))
    ]
    if unclear:
        parts.append(f"not clearly different under {join(unclear)}")
    return "; ".join(parts)


def _margin(arm: str, figures: ArmTable) -> str:
    """The margins that an arm learned; what it did not learn held out shows in the second."""
    parts = [
        f"{mean_and_ends(margin)[0]} {place}"
        for split, place in (("train", "in training"), ("heldout", "held out"))
        if (margin := figures.mean(arm, f"{split}/margin")).n
    ]
    return f", at a margin of {' and '.join(parts)}" if parts else ""
