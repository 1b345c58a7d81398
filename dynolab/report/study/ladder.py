"""The ladder in a report: which part of the theory a step's forecast needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dynolab.report.figure import Figure
from dynolab.report.lines import Line, LinePanel, line_plot
from dynolab.report.page import Section, section, table
from dynolab.report.text import join, number
from dynolab.results.squeezing import LadderRung, Rung
from dynolab.statistics import mean_interval

_NAMES: dict[Rung, str] = {
    "logits": "one softmax",
    "own_token": "own token",
    "head": "head",
    "table": "shared table",
    "weights": "all weights",
    "batch": "whole batch",
}
_ENOUGH = 0.95
"""AUC from which a rung is said to foretell the step."""


def ladder_figure(rungs: Sequence[LadderRung], titles: Mapping[str, str]) -> Figure | None:
    """AUC and signs by rung, means over recorded steps, a line for each training and side.

    **Arguments:** `titles`: the trainings' names on the page, by name.
    """
    if not rungs:
        return None
    steps = [rung for rung in _NAMES if any(row.rung == rung for row in rungs)]
    lines = _by_line(rungs, titles)
    panels = [
        LinePanel(
            title,
            "",
            unit,
            [
                Line(
                    name,
                    [steps.index(rung) for rung in own],
                    [
                        mean_interval(np.array([getattr(row, measure) for row in rows]))
                        for rows in own.values()
                    ],
                )
                for name, own in lines.items()
            ],
            tickformat=tickformat,
            ticks=[_NAMES[rung] for rung in steps],
        )
        for measure, title, unit, tickformat in (
            ("auc", "which tokens rise", "AUC", ""),
            ("right", "signs foretold", "share", ".0%"),
        )
    ]
    return Figure(
        "ladder",
        "How much of the theory a forecast needs",
        _message(lines),
        "Each rung keeps more of −A·K·G: K = I at the token’s own position; all weights, but the "
        "token’s own push alone; the head at fixed features, with all tokens of the pair; the "
        "head’s table in its use as embedding, too, where both share one; all weights; and the "
        "whole batch with momentum and decay. AUC: the probability that a token that rose had a "
        "higher forecast than one that fell; ½ is chance. Bands: 95% over recorded steps.",
        line_plot(panels),
    )


def ladder_section(rungs: Sequence[LadderRung], titles: Mapping[str, str]) -> Section | None:
    """Every rung's figures, with the probability that flows to y*."""
    if not rungs:
        return None
    rows = [
        (
            line,
            _NAMES[rung],
            *(number(float(np.mean([getattr(row, name) for row in own]))) for name in _MEASURED),
        )
        for line, by_rung in _by_line(rungs, titles).items()
        for rung, own in by_rung.items()
    ]
    return section(
        "rungs",
        "The ladder in numbers",
        "Means over recorded steps. Flow: the change of probability of the likeliest token but the "
        "answer’s own, per position, as forecast and as realised.",
        table(
            ("training", "rung", "AUC", "signs foretold", "flow to y*, forecast", "realised"),
            rows,
            "ssnnnn",
        ),
    )


_MEASURED = ("auc", "right", "flow", "flow_measured")
_Lines = dict[str, dict[Rung, list[LadderRung]]]


def _by_line(rungs: Sequence[LadderRung], titles: Mapping[str, str]) -> _Lines:
    """The rows of each training and side, by rung, from the lowest."""
    lines: _Lines = {}
    for rung in _NAMES:
        for row in rungs:
            if row.rung == rung:
                title = titles.get(row.training, f"“{row.training}”")
                lines.setdefault(f"{title}, {row.side}", {}).setdefault(rung, []).append(row)
    return dict(sorted(lines.items()))


def _message(lines: _Lines) -> str:
    """The lowest rung that foretells each training's steps."""
    parts = []
    for name, by_rung in lines.items():
        areas = {rung: float(np.mean([row.auc for row in rows])) for rung, rows in by_rung.items()}
        enough = [rung for rung, area in areas.items() if area >= _ENOUGH]
        if enough:
            parts.append(f"{name}: {_NAMES[enough[0]]} (AUC {number(areas[enough[0]])})")
        else:
            best = max(areas, key=lambda rung: areas[rung])
            parts.append(f"{name}: none, {_NAMES[best]} comes nearest ({number(areas[best])})")
    return f"The lowest rung with an AUC of {_ENOUGH} or more is, under {join(parts)}."
