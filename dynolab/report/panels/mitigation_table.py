"""The table of remedies: a line for each arm, with the difference to the baseline under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dynolab.comparisons.group_arms import ArmTable
from dynolab.report.page import Html, section, table, text
from dynolab.report.panels.arm_words import settings, told
from dynolab.report.style import join, mean_and_ends
from dynolab.results.arms import ComparedArms, RunFigures
from dynolab.statistics import Interval, clear


@dataclass(frozen=True)
class Column:
    """A figure as the table calls it; a share is shown in parts of a hundred.

    `note` explains the name where it needs that.
    """

    figure: str
    called: str
    share: bool = False
    change: bool = False
    note: str = ""


COLUMNS = (
    Column("train/gap", "Δ gap y* − y⁺", change=True),
    Column("train/chosen", "Δ chosen y⁺", change=True),
    Column("train/rejected", "Δ rejected y⁻", change=True),
    Column("train/argmax", "Δ y*", change=True),
    Column(
        "train/gap_by_margin",
        "gap by margin",
        note="Gap by margin: Δ gap over Δ (y⁺ − y⁻) where that is a nat or more: what squeezing "
        "costs by the nat learned.",
    ),
    Column(
        "train/right",
        "right, %",
        share=True,
        note="Right: sampled answers to training prompts that state the chosen answer's fact.",
    ),
    Column(
        "train/refused",
        "rejected's fault, %",
        share=True,
        note="Rejected's fault: sampled answers that state the rejected answer's wrong fact, or "
        "insult as it does; where they grow, extension breaks.",
    ),
    Column(
        "heldout/won",
        "preferred, %",
        share=True,
        note="Preferred: of the answers to held-out prompts, ties half.",
    ),
    Column("train/distinct_2", "distinct-2, %", share=True),
    Column(
        "train/longest_repeat",
        "longest repeat",
        note="Distinct-2 and longest repeat, in tokens, are of single answers to training prompts.",
    ),
)


TO_THE_END = "to the end"


def columns_of(figures: ArmTable) -> list[Column]:
    """The columns that anything was measured for."""
    return [one for one in COLUMNS if one.figure in figures.names]


def mitigation_table(compared: ComparedArms, figures: ArmTable) -> Html:
    """Every arm's figures with intervals over seeds, and how its runs ended."""
    shown = columns_of(figures)
    rows = [
        (
            _name(arm, ending(compared.runs[arm], compared.seeds)),
            *(_cell(compared, figures, arm, one) for one in shown),
        )
        for arm in compared.arms
    ]
    head = ("arm", *(one.called for one in shown))
    return section(
        "arms",
        "Every arm, every figure",
        f"{len(compared.arms)} arms with {len(compared.seeds)} seeds; below: the difference to "
        f"{compared.baseline}, paired by seed, bold where its interval excludes zero.",
        table(head, rows, "s" + "n" * len(shown)),
        note=_note(shown),
    )


def _note(shown: Sequence[Column]) -> str:
    return " ".join(
        [
            "Means over pairs or prompts, then over seeds [95% t-interval over seeds]; changes in "
            "nats since the start of preference training.",
            *(one.note for one in shown if one.note),
            "A run that diverged has no figures: means are over the others.",
        ]
    )


def _name(arm: str, ended: str) -> Html:
    """An arm's name, and how its runs ended where that was not as planned."""
    told = "" if ended == TO_THE_END else f'<br><small class="quiet">{text(ended)}</small>'
    return Html(f"<b>{text(arm)}</b>{told}")


def ending(runs: Sequence[RunFigures], seeds: Sequence[int]) -> str:
    """How an arm's runs ended, with the seed where one did not end as planned."""
    found = [
        f"seed {seed} diverged after {run.diverged.step} steps"
        for seed, run in zip(seeds, runs, strict=True)
        if run.diverged is not None
    ]
    stops = [run.alarm.step for run in runs if run.alarm is not None and run.alarm.stopped]
    if stops:
        ends = "–".join(dict.fromkeys(map(str, (min(stops), max(stops)))))
        found.append(f"{len(stops)} of {len(runs)} ended by the alarm at step {ends}")
    return "; ".join(found) or TO_THE_END


def _cell(compared: ComparedArms, figures: ArmTable, arm: str, column: Column) -> Html:
    mean, ends = _told(figures.mean(arm, column.figure), column, sign=column.change)
    lines = [mean, f"<small>{ends}</small>"]
    difference = figures.difference(arm, compared.baseline, column.figure)
    if arm != compared.baseline and difference.n:
        change, ends = _told(difference, column, sign=True)
        mark = "b" if clear(difference) else "span"
        lines.append(f'<small class="quiet"><{mark}>{change}</{mark}></small>')
        lines.append(f'<small class="quiet">{ends}</small>')
    return Html("<br>".join(lines))


def _told(value: Interval, column: Column, *, sign: bool) -> tuple[str, str]:
    """Mean and interval of a figure; a share in parts of a hundred."""
    if not value.n:
        return "–", ""
    scale = 100 if column.share else 1
    scaled = Interval(scale * value.mean, scale * value.low, scale * value.high, value.n)
    mean, low, high = mean_and_ends(scaled, sign)
    return text(mean), text(f"[{low}, {high}]")


def mitigation_list(compared: ComparedArms) -> Html:
    """What every arm is, its source, and settings off the default."""
    rows = []
    for label, arm in compared.arms.items():
        what, source = told(arm)
        rows.append((Html(f"<b>{text(label)}</b>"), what, source, settings(arm)))
    return section(
        "compared",
        "What is compared",
        f"{join(compared.others)} with {compared.baseline}, which is the baseline."
        if compared.others
        else f"{compared.baseline} alone.",
        table(("arm", "what it is", "source", "settings"), rows),
        note=f"{compared.training} Settings: those that are not the default.",
    )
