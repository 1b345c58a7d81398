"""Figures that compare arms: their differences, right answers, and diversity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from dynolab.comparisons.arm_table import (
    LAZY_CHANGE,
    LAZY_SHARE,
    START,
    ArmTable,
    pass_names,
    splits_of,
)
from dynolab.report.dots import DotPanel, dot_plot
from dynolab.report.figure import Figure
from dynolab.report.inputs.arms import GroupPageInputs
from dynolab.report.style import SPLITS
from dynolab.report.text import join, points, with_interval
from dynolab.statistics import Interval, clear

_READ = "Diamonds: means over seeds with 95% t-intervals; dots: single seeds."


def _reading_note(inputs: GroupPageInputs) -> str:
    if inputs.unit == "seeds":
        return _READ
    return "Diamonds: means over prompts with 95% t-intervals; there is one seed."


def against_figure(inputs: GroupPageInputs, figures: ArmTable) -> Figure | None:
    """Every other arm minus the baseline: pass@1, pass@k, and questions displaced."""
    others = [arm for arm in inputs.arms if arm != inputs.baseline]
    panels = _compared(figures)
    if not others or not panels:
        return None
    differences = figures.against(inputs.baseline)
    return Figure(
        "against",
        f"Every arm against {inputs.baseline}",
        " ".join(_clear(inputs, differences, others, panel) for panel in panels),
        f"{_READ} Differences are paired by seed: both arms of a seed start from the same model. "
        "If an interval contains zero, the seeds do not distinguish the arms. Intervals are not "
        "corrected for their number: about one in twenty excludes a true zero by chance.",
        dot_plot(differences, others, panels),
    )


def _compared(figures: ArmTable) -> list[DotPanel]:
    """The panels of the comparison: both ends of pass@k, and the displaced share."""
    ends: dict[str, dict[str, str]] = {}
    for split in splits_of(figures.names):
        names = pass_names(figures.names, split)
        for name in dict.fromkeys((names[0], names[-1])):
            ends.setdefault(f"pass@{name.rpartition('_')[2]}", {})[SPLITS[split]] = name
    panels = [DotPanel(title, "difference", of, "+.1%", zero=True) for title, of in ends.items()]
    if LAZY_SHARE in figures.names:
        panels.append(
            DotPanel(
                "Questions displaced",
                "difference",
                {SPLITS["train"]: LAZY_SHARE},
                "+.1%",
                zero=True,
            )
        )
    return panels


def _clear(
    inputs: GroupPageInputs, differences: ArmTable, others: list[str], panel: DotPanel
) -> str:
    """Lists which arms clearly differ from the baseline in a panel, in percentage points."""
    changes = [
        f"{arm} {points(change)} on {split} prompts"
        for split, name in panel.figures.items()
        for arm in others
        if clear(change := differences.mean(arm, name))
    ]
    if not changes:
        return f"{panel.title}: no arm clearly differs from {inputs.baseline}."
    return f"{panel.title}: {join(changes)}, in points."


def _lifted(inputs: GroupPageInputs, figures: ArmTable) -> str:
    """Lists the arms whose update clearly changes right answers otherwise than the baseline's."""
    changes = {arm: figures.difference(arm, inputs.baseline, LAZY_CHANGE) for arm in inputs.arms}
    parts = [f"{with_interval(own)} under {arm}" for arm, own in changes.items() if clear(own)]
    return f" The difference from {inputs.baseline} is {join(parts)}." if parts else ""


def likelihood_figure(inputs: GroupPageInputs, figures: ArmTable) -> Figure | None:
    """The change of the right answers that were given before training."""
    changed = _by_split(figures, "right_change")
    if not changed:
        return None
    name = next(iter(changed.values()))
    panels = (
        DotPanel("Right answers given before", "Δ log π (nats)", changed, zero=True),
        DotPanel(
            "Prompts whose right answers fell",
            "share of prompts",
            _by_split(figures, "right_fallen"),
            ".0%",
        ),
    )
    return Figure(
        "likelihood",
        "What becomes of right answers over training",
        f"The right answers given before training to {next(iter(changed))} prompts change, in "
        f"nats, by {_of_arms(inputs, figures, name, with_interval)}.",
        f"{_reading_note(inputs)} Right answers: those among the samples before training, log π "
        "summed over their tokens, a mean over the prompts that had any. They also fall if "
        "training moves their probability to a few of them.",
        dot_plot(figures, list(inputs.arms), panels),
    )


def displacement_figure(inputs: GroupPageInputs, figures: ArmTable) -> Figure | None:
    """Lazy likelihood displacement by one update, arm by arm."""
    if LAZY_SHARE not in figures.names:
        return None
    train = SPLITS["train"]
    panels = (
        DotPanel("Questions displaced", "share of questions", {train: LAZY_SHARE}, ".0%"),
        DotPanel(
            "Right answers to the question", "Δ log π (nats)", {train: LAZY_CHANGE}, zero=True
        ),
    )
    tested = [
        len(run.displaced) for run in inputs.of_arm(inputs.baseline) if run.displaced is not None
    ]
    counted = f" That leaves {min(tested)} to {max(tested)} per seed." if tested else ""
    return Figure(
        "displacement",
        "Does one update raise right answers at all?",
        "The percentage of questions that one update displaces is "
        f"{_of_arms(inputs, figures, LAZY_SHARE, partial(points, sign=False))}. It changes right "
        f"answers, in nats, by {_of_arms(inputs, figures, LAZY_CHANGE, with_interval)}."
        f"{_lifted(inputs, figures)}",
        f"{_reading_note(inputs)} Lazy likelihood displacement (Deng et al., arXiv 2505.18830): "
        "one update of the model before training, on the sampled answers to one training prompt "
        f"alone ({inputs.update.name}, learning rate {inputs.update.learning_rate:g}); displaced "
        f"if the right ones rise by no more than {inputs.epsilon:g} nats on average. Prompts "
        f"whose answers are all right or all wrong are left out.{counted}",
        dot_plot(figures, list(inputs.arms), panels),
    )


def diversity_figure(inputs: GroupPageInputs, figures: ArmTable) -> Figure | None:
    """Different answers to a prompt, and the entropy of answers, before and after."""
    distinct, entropy = (_by_split(figures, name) for name in ("distinct", "entropy"))
    if not distinct:
        return None
    panels = (
        DotPanel("Different answers among a prompt's samples", "share of samples", distinct, ".0%"),
        DotPanel("Entropy of a whole answer", "nats", entropy),
    )
    return Figure(
        "diversity",
        "How many different answers there are",
        _diversity_message(inputs, figures),
        f"{_reading_note(inputs)} The entropy is the mean of −log π over sampled answers.",
        dot_plot(figures, [START, *inputs.arms], panels),
    )


def _by_split(figures: ArmTable, name: str) -> Mapping[str, str]:
    """A figure's name in every split that has it, by the split's label."""
    return {
        SPLITS[split]: f"{split}/{name}"
        for split in splits_of(figures.names)
        if f"{split}/{name}" in figures.names
    }


def _of_arms(
    inputs: GroupPageInputs, figures: ArmTable, name: str, form: Callable[[Interval], str]
) -> str:
    """A figure under the baseline, and its least and greatest value under the others."""
    means = {arm: mean for arm in inputs.arms if (mean := figures.mean(arm, name)).n}
    parts = []
    if own := means.pop(inputs.baseline, None):
        parts.append(f"{form(own)} under {inputs.baseline}")
    if means:
        ends = dict.fromkeys(end(means, key=lambda arm: means[arm].mean) for end in (min, max))
        parts.append("others " + " to ".join(f"{form(means[arm])} under {arm}" for arm in ends))
    return "; ".join(parts)


def _diversity_message(inputs: GroupPageInputs, figures: ArmTable) -> str:
    name = next(iter(_by_split(figures, "distinct").values()))
    before = figures.mean(START, name)
    after = [f"{figures.mean(arm, name).mean:.0%} under {arm}" for arm in inputs.arms]
    split = SPLITS[name.split("/")[0]]  # type: ignore[index]
    return (
        f"Of the samples to a {split} prompt, {before.mean:.0%} are different answers before "
        f"training and {join(after)} after it."
    )
