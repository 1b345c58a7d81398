"""The figures that set arms side by side: likelihood of right answers, and diversity."""

from __future__ import annotations

from dynolab.figures.arm_style import DotPanel, dot_figure
from dynolab.figures.group_inputs import GroupPageInputs
from dynolab.figures.style import SPLITS, Plate, join, with_interval
from dynolab.probes.arms import LAZY_CHANGE, LAZY_SHARE, START, ArmTable, splits_of


def likelihood_plate(inputs: GroupPageInputs, figures: ArmTable) -> Plate | None:
    """Right answers after training and after one update, arm by arm."""
    arms = list(inputs.arms)
    changed = _by_split(figures, "right_change")
    if not changed and LAZY_SHARE not in figures.names:
        return None
    panels = [DotPanel("After training: right answers given before", "Δ log π (nats)", changed,
                       zero=True)]  # fmt: skip
    if LAZY_SHARE in figures.names:
        panels.append(
            DotPanel("After one update: questions displaced", "share of questions",
                     {SPLITS["train"]: LAZY_SHARE}, ".0%")
        )  # fmt: skip
    return Plate(
        "likelihood",
        "Do right answers become likelier?",
        _likelihood_message(inputs, figures),
        "Left: the right ones among the answers sampled before training, summed over their "
        "tokens; a mean over prompts, diamonds over seeds with 95% t-intervals, dots single "
        "seeds. It falls too where training gives their probability to a few of them. Right: lazy "
        "likelihood displacement (Deng et al., arXiv 2505.18830), the share of training prompts "
        "with partly right answers whose right ones rise by no more than "
        f"{inputs.epsilon:g} nats on average in one update on that prompt alone.",
        dot_figure(figures, arms, panels),
    )


def diversity_plate(inputs: GroupPageInputs, figures: ArmTable) -> Plate | None:
    """Different answers to a prompt, and the entropy of answers, before and after."""
    distinct, entropy = (_by_split(figures, name) for name in ("distinct", "entropy"))
    if not distinct:
        return None
    panels = (
        DotPanel("Different answers among a prompt's samples", "share", distinct, ".0%"),
        DotPanel("Entropy of a whole answer", "nats", entropy),
    )
    return Plate(
        "diversity",
        "How many different answers there are",
        _diversity_message(inputs, figures),
        "Diamonds: means over seeds with 95% t-intervals; dots: single seeds. The entropy is the "
        "mean of −log π over sampled answers.",
        dot_figure(figures, [START, *inputs.arms], panels),
    )


def _by_split(figures: ArmTable, name: str) -> dict[str, str]:
    """A figure of every split that has it, by the split's name."""
    return {
        SPLITS[split]: f"{split}/{name}"
        for split in splits_of(figures.names)
        if f"{split}/{name}" in figures.names
    }


def _likelihood_message(inputs: GroupPageInputs, figures: ArmTable) -> str:
    parts = []
    moved = [
        f"{with_interval(change)} under {arm}"
        for arm in inputs.arms
        if (change := figures.mean(arm, "train/right_change")).n
    ]
    if moved:
        parts.append(
            f"Over training, right answers to training prompts change by {join(moved)} nats."
        )
    shares = [
        f"{share.mean:.0%} under {arm} ({with_interval(figures.mean(arm, LAZY_CHANGE))} nats)"
        for arm in inputs.arms
        if (share := figures.mean(arm, LAZY_SHARE)).n
    ]
    if shares:
        parts.append(f"One update displaces {join(shares)} of the questions.")
    return " ".join(parts)


def _diversity_message(inputs: GroupPageInputs, figures: ArmTable) -> str:
    name = next(iter(_by_split(figures, "distinct").values()))
    before = figures.mean(START, name)
    after = [f"{figures.mean(arm, name).mean:.0%} under {arm}" for arm in inputs.arms]
    split = SPLITS[name.split("/")[0]]  # type: ignore[index]
    return (
        f"Of the samples to a {split} prompt {before.mean:.0%} are different answers before "
        f"training and {join(after)} after it."
    )
