"""Remedies at the same margin: the way of every arm, and its difference from the baseline there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from markupsafe import Markup

from dynolab.comparisons.arm_table import ArmTable
from dynolab.comparisons.matched import LEAST_MARGIN, at_margin, matched_figures, reach
from dynolab.report.figure import Figure
from dynolab.report.lines import Line, LinePanel, line_plot
from dynolab.report.page import Section, section, table
from dynolab.report.text import join, mean_and_ends
from dynolab.results.arms import ComparedArms, RunFigures
from dynolab.statistics import mean_interval

GAP, CHOSEN = "matched/gap", "matched/chosen"
_LEVELS = 12
"""Margins at which an arm's line is drawn."""


def matched_table_of(compared: ComparedArms) -> ArmTable:
    """Every other arm's differences from the baseline at the same margin, seed by seed."""
    pairs = [
        run.counts["train/margin"]
        for runs in compared.runs.values()
        for run in runs
        if "train/margin" in run.counts
    ]
    return ArmTable(
        {
            arm: [
                matched_figures(run.path, base.path)
                for run, base in zip(
                    compared.runs[arm], compared.runs[compared.baseline], strict=True
                )
            ]
            for arm in compared.others
        },
        counts=dict.fromkeys((GAP, CHOSEN), min(pairs, default=0)),
    )


def matched_figure(compared: ComparedArms) -> Figure | None:
    """Gap and chosen answer against the margin learned."""
    arms = [arm for arm in compared.arms if _margins(compared.runs[arm])]
    if not arms:
        return None
    figures = matched_table_of(compared)
    titles: dict[Literal["gap", "chosen"], str] = {"gap": "Gap y* − y⁺", "chosen": "Chosen y⁺"}
    panels = [
        LinePanel(
            title,
            "margin learned, nats",
            "Δ nats",
            [_line(arm, compared.runs[arm], name) for arm in arms],
        )
        for name, title in titles.items()
    ]
    return Figure(
        "matched",
        "What each nat of margin costs",
        _message(compared, figures),
        "Means over seeds of the training pairs, with 95% t-intervals, at margins that every seed "
        "of the arm reaches; all are changes since the start. An arm whose line ends early has "
        "learned less; it is better only where its line lies below in the first panel, or above in "
        "the second.",
        line_plot(panels),
    )


def _margins(runs: Sequence[RunFigures]) -> list[float]:
    """Margins up to the largest that all of an arm's runs reach; none if it is small."""
    reached = min((reach(run.path) for run in runs if run.path), default=0.0)
    levels: list[float] = np.linspace(reached / _LEVELS, reached, _LEVELS).tolist()
    return levels if reached >= LEAST_MARGIN else []


def _line(arm: str, runs: Sequence[RunFigures], name: Literal["gap", "chosen"]) -> Line:
    margins = _margins(runs)
    own = [run.path for run in runs if run.path]
    values = [
        mean_interval(np.array([at_margin(path, margin, name) for path in own]))
        for margin in margins
    ]
    return Line(arm, margins, values)


def _message(compared: ComparedArms, figures: ArmTable) -> str:
    said = []
    for sign, how in ((-1, "narrower"), (1, "wider")):
        arms = [
            f"{arm} ({mean_and_ends(gap)[0]})"
            for arm in compared.others
            if figures.decides(gap := figures.mean(arm, GAP), GAP) and sign * gap.mean > 0
        ]
        if arms:
            said.append(f"{how} under {join(arms)}")
    if not any(figures.mean(arm, GAP).n for arm in compared.others):
        return f"No arm and {compared.baseline} reach a margin that could be compared."
    if not said:
        return f"At the same margin no arm's gap differs clearly from {compared.baseline}'s."
    return (
        f"At the margin that both reach, the gap is {'; '.join(said)} than {compared.baseline}'s."
    )


def matched_section(compared: ComparedArms) -> Section | None:
    """The differences as a table; None if no arm can be compared."""
    figures = matched_table_of(compared)
    arms = [arm for arm in compared.others if figures.over_seeds(arm, "matched/margin").n]
    if not arms:
        return None
    captions = {
        "matched/margin": "at margin",
        GAP: "Δ gap y* − y⁺",
        CHOSEN: "Δ chosen y⁺",
        "matched/steps": "times the steps",
    }
    rows = [
        (Markup("<b>{}</b>").format(arm), *(_cell(figures, arm, name) for name in captions))
        for arm in arms
    ]
    return section(
        "same-margin",
        "At the same margin",
        f"Each arm minus {compared.baseline}, where both have learned as much.",
        table(("arm", *captions.values()), rows, "s" + "n" * len(captions), cards=True),
        note="The margin is the largest that both reach with a seed. Means over seeds [95% "
        "t-interval], bold where a difference's interval excludes zero; nats. Times the steps: how "
        f"many times {compared.baseline}'s steps the arm needs for it.",
    )


def _cell(figures: ArmTable, arm: str, name: str) -> Markup:
    value, is_change = figures.over_seeds(arm, name), name in (GAP, CHOSEN)
    mean, ends = mean_and_ends(value, is_change)
    bold = is_change and figures.decides(value, name)
    return Markup("<b>{}</b>" if bold else "{}").format(mean) + Markup(
        "<br><small>{}</small>"
    ).format(ends)
