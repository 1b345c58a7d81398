"""The tables of remedies: the figures of each arm, and their difference from the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from dynolab.comparisons.arm_table import LEAST_COUNT, ArmTable
from dynolab.report.page import Section, section, table
from dynolab.report.text import join, mean_and_ends
from dynolab.results.arms import ComparedArms, RunFigures
from dynolab.statistics import Interval


@dataclass(frozen=True)
class Shown:
    """A figure of the arms; a share is shown in percent.

    `note` explains the caption, if needed.
    """

    figure: str
    caption: str
    share: bool = False
    change: bool = False
    note: str = ""


WATCHED = (
    Shown("train/chosen", "Δ chosen y⁺", change=True),
    Shown("heldout/chosen", "Δ chosen, held out", change=True),
    Shown("train/fell", "chosen that fell, %", share=True),
    Shown("heldout/fell", "chosen that fell, held out, %", share=True),
    Shown("train/margin", "Δ margin y⁺ − y⁻", change=True),
    Shown("heldout/margin", "Δ margin, held out", change=True),
    Shown("train/rejected", "Δ rejected y⁻", change=True),
    Shown("train/argmax", "Δ y*", change=True),
    Shown("train/gap", "Δ gap y* − y⁺", change=True),
    Shown(
        "train/gap_by_margin",
        "gap by margin",
        note="Gap by margin: Δ gap over Δ (y⁺ − y⁻) if that is a nat or more: what squeezing "
        "costs per nat learned.",
    ),
)
SAMPLED = (
    Shown("heldout/right", "right, held out, %", share=True),
    Shown(
        "train/right",
        "right, tuned on, %",
        share=True,
        note="Right: sampled answers that state the chosen answer's fact.",
    ),
    Shown(
        "heldout/wrong",
        "wrong, held out, %",
        share=True,
        note="Wrong: those that state something else, right in form or not; the others are broken.",
    ),
    Shown(
        "train/refused",
        "rejected's fault, %",
        share=True,
        note="Rejected's fault: sampled answers that state the rejected answer's wrong fact, or "
        "insult as it does; if they grow, extended SFT does harm.",
    ),
    Shown(
        "heldout/won",
        "preferred, %",
        share=True,
        note="Preferred: share of contests won on held-out prompts, ties half.",
    ),
    Shown("train/distinct_2", "distinct-2, %", share=True),
    Shown(
        "train/longest_repeat",
        "longest repeat",
        note="Distinct-2 and longest repeat, in tokens, are of single answers to training prompts.",
    ),
)
GROUPS = {"Watched pairs": WATCHED, "Sampled answers": SAMPLED}
TO_THE_END = "to the end"
_GROUP = Markup(
    '<details class="more" open><summary>{}</summary><div class="tables">{}</div></details>'
)
_FIGURE = Markup("<div><h3>{}</h3>{}</div>")
_CELL = Markup('{}<br><small class="quiet">{}</small>')
_BOLD = Markup('<b>{}</b><br><small class="quiet">{}</small>')


def mitigation_table(compared: ComparedArms, figures: ArmTable) -> Section:
    """Every figure of every arm, a small table each, and how the arms' runs ended."""
    groups = {
        title: [shown for shown in own if shown.figure in figures.names]
        for title, own in GROUPS.items()
    }
    every = [shown for own in groups.values() for shown in own]
    few = [shown.caption for shown in every if figures.few(shown.figure)]
    notes = [
        "Means over pairs or prompts, then over seeds [95% t-interval over seeds]; changes in "
        "nats since the start of preference training.",
        *(shown.note for shown in every if shown.note),
        *(
            [f"Of fewer than {LEAST_COUNT} pairs or prompts, so never bold: {join(few)}."]
            if few
            else []
        ),
        "A run that diverged has no figures: means are over the others.",
    ]
    return section(
        "arms",
        "Every arm, every figure",
        f"{len(compared.arms)} arms with {len(compared.seeds)} seeds; on the right of each table "
        f"the difference from {compared.baseline}, paired by seed, bold where its interval "
        "excludes zero.",
        *(
            _GROUP.format(title, Markup().join(_table(compared, figures, shown) for shown in own))
            for title, own in groups.items()
            if own
        ),
        note=" ".join(notes),
    )


def _table(compared: ComparedArms, figures: ArmTable, shown: Shown) -> Markup:
    rows = [
        (
            _name(arm, ending(compared.runs[arm], compared.seeds)),
            _own(figures, arm, shown),
            _difference(compared, figures, arm, shown),
        )
        for arm in compared.arms
    ]
    head = ("arm", "mean", f"minus {compared.baseline}")
    return _FIGURE.format(shown.caption, table(head, rows, "snn"))


def _name(arm: str, ended: str) -> Markup:
    """An arm's name, and how its runs ended if not as planned."""
    name = Markup("<b>{}</b>").format(arm)
    if ended == TO_THE_END:
        return name
    return name + Markup('<br><small class="quiet">{}</small>').format(ended)


def ending(runs: Sequence[RunFigures], seeds: Sequence[int]) -> str:
    """How an arm's runs ended, with the seeds of those that did not end as planned."""
    ends = [
        f"seed {seed} diverged after {run.diverged.step} steps"
        for seed, run in zip(seeds, runs, strict=True)
        if run.diverged is not None
    ]
    stops = [run.alarm.step for run in runs if run.alarm is not None and run.alarm.stopped]
    if stops:
        steps = "–".join(dict.fromkeys(map(str, (min(stops), max(stops)))))
        ends.append(f"{len(stops)} of {len(runs)} ended by the alarm at step {steps}")
    return "; ".join(ends) or TO_THE_END


def _own(figures: ArmTable, arm: str, shown: Shown) -> Markup:
    mean = figures.mean(arm, shown.figure)
    mean = mean.within(0, 1) if shown.share else mean
    return _CELL.format(*_mean_and_ends(mean, shown, sign=shown.change))


def _difference(compared: ComparedArms, figures: ArmTable, arm: str, shown: Shown) -> Markup:
    difference = figures.difference(arm, compared.baseline, shown.figure)
    if arm == compared.baseline or not difference.n:
        return Markup()
    decides = figures.decides(difference, shown.figure)
    return (_BOLD if decides else _CELL).format(*_mean_and_ends(difference, shown, sign=True))


def _mean_and_ends(value: Interval, shown: Shown, *, sign: bool) -> tuple[str, str]:
    """Mean and interval of a figure; a share in percent."""
    if not value.n:
        return "–", ""
    return mean_and_ends(value.times(100) if shown.share else value, sign)
