"""The tables of remedies: the figures of each arm, and their difference from the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from dynolab.comparisons.arm_table import ArmTable
from dynolab.report.page import Section, section, table
from dynolab.report.text import mean_and_ends
from dynolab.results.arms import ComparedArms, RunFigures
from dynolab.statistics import Interval


@dataclass(frozen=True)
class Column:
    """A column of the table; a share is shown in percent.

    `note` explains the caption, if needed.
    """

    figure: str
    caption: str
    share: bool = False
    change: bool = False
    note: str = ""


COLUMNS = (
    Column("heldout/right", "right, held out, %", share=True),
    Column(
        "train/right",
        "right, tuned on, %",
        share=True,
        note="Right: sampled answers that state the chosen answer's fact.",
    ),
    Column(
        "heldout/wrong",
        "wrong, held out, %",
        share=True,
        note="Wrong: those that state something else, right in form or not; the others are broken.",
    ),
    Column("train/gap", "Δ gap y* − y⁺", change=True),
    Column("train/chosen", "Δ chosen y⁺", change=True),
    Column("heldout/chosen", "Δ chosen, held out", change=True),
    Column("train/fell", "chosen that fell, %", share=True),
    Column("heldout/fell", "that fell, held out, %", share=True),
    Column("train/rejected", "Δ rejected y⁻", change=True),
    Column("train/margin", "Δ margin y⁺ − y⁻", change=True),
    Column("heldout/margin", "Δ margin, held out", change=True),
    Column("train/argmax", "Δ y*", change=True),
    Column(
        "train/gap_by_margin",
        "gap by margin",
        note="Gap by margin: Δ gap over Δ (y⁺ − y⁻) if that is a nat or more: what squeezing "
        "costs per nat learned.",
    ),
    Column(
        "train/refused",
        "rejected's fault, %",
        share=True,
        note="Rejected's fault: sampled answers that state the rejected answer's wrong fact, or "
        "insult as it does; if they grow, extended SFT does harm.",
    ),
    Column(
        "heldout/won",
        "preferred, %",
        share=True,
        note="Preferred: share of contests won on held-out prompts, ties half.",
    ),
    Column("train/distinct_2", "distinct-2, %", share=True),
    Column(
        "train/longest_repeat",
        "longest repeat",
        note="Distinct-2 and longest repeat, in tokens, are of single answers to training prompts.",
    ),
)
TO_THE_END = "to the end"


def mitigation_table(compared: ComparedArms, figures: ArmTable) -> Section:
    """Every arm's figures with intervals over seeds, and how its runs ended."""
    shown = [column for column in COLUMNS if column.figure in figures.names]
    rows = [
        (
            _name(arm, ending(compared.runs[arm], compared.seeds)),
            *(_cell(compared, figures, arm, column) for column in shown),
        )
        for arm in compared.arms
    ]
    notes = [
        "Means over pairs or prompts, then over seeds [95% t-interval over seeds]; changes in "
        "nats since the start of preference training.",
        *(column.note for column in shown if column.note),
        "A run that diverged has no figures: means are over the others.",
    ]
    return section(
        "arms",
        "Every arm, every figure",
        f"{len(compared.arms)} arms with {len(compared.seeds)} seeds; below: the difference from "
        f"{compared.baseline}, paired by seed, bold where its interval excludes zero.",
        table(("arm", *(column.caption for column in shown)), rows, "s" + "n" * len(shown)),
        note=" ".join(notes),
    )


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


def _cell(compared: ComparedArms, figures: ArmTable, arm: str, column: Column) -> Markup:
    own = figures.mean(arm, column.figure)
    own = own.within(0, 1) if column.share else own
    mean, ends = _mean_and_ends(own, column, sign=column.change)
    cell = Markup("{}<br><small>{}</small>").format(mean, ends)
    difference = figures.difference(arm, compared.baseline, column.figure)
    if arm == compared.baseline or not difference.n:
        return cell
    change, ends = _mean_and_ends(difference, column, sign=True)
    mark = Markup(
        "<b>{}</b>" if figures.decides(difference, column.figure) else "<span>{}</span>"
    ).format(change)
    quiet = Markup('<br><small class="quiet">{}</small>').format
    return cell + quiet(mark) + quiet(ends)


def _mean_and_ends(value: Interval, column: Column, *, sign: bool) -> tuple[str, str]:
    """Mean and interval of a figure; a share in percent."""
    if not value.n:
        return "–", ""
    mean, low, high = mean_and_ends(value.times(100) if column.share else value, sign)
    return mean, f"[{low}, {high}]"
