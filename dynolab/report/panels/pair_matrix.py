"""The figure of pair totals: which updating pair moves which observed answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import plotly.graph_objects as go
from numpy import ndarray

from dynolab.report.inputs.forces import CheckpointForces
from dynolab.report.style import (
    DIVERGING,
    MONO,
    Plate,
    axis_key,
    axis_name,
    base_layout,
    buttons,
    columns,
    join,
    number,
    panel_title,
    plotly_text,
)
from dynolab.results.forces import PairForce

_PARTS: dict[str, Callable[[PairForce], float]] = {
    "whole pair": lambda row: row.total,
    "through y⁺": lambda row: row.from_chosen,
    "through y⁻": lambda row: row.from_rejected,
}


def pair_matrix_plate(checkpoints: Sequence[CheckpointForces]) -> Plate:
    """Rows: observed answers; columns: updating pairs; one panel a checkpoint."""
    figure = go.Figure()
    answers = list(dict.fromkeys(_answer(row) for row in checkpoints[0].totals))
    height = 190 + max(220, 20 * len(answers))
    layout = base_layout(height, margin={"l": 170, "r": 24, "t": 96, "b": 96})
    grids = {
        part: [_grid(one.totals, value) for one in checkpoints] for part, value in _PARTS.items()
    }
    annotations = []
    for index, (one, domain) in enumerate(
        zip(checkpoints, columns(len(checkpoints), 0.03), strict=True), start=1
    ):
        names, pairs = _names(one.totals)
        x, y = np.arange(len(pairs)), np.arange(len(names))
        figure.add_heatmap(
            z=grids["whole pair"][index - 1],
            x=x,
            y=y,
            coloraxis="coloraxis",
            xgap=1,
            ygap=1,
            xaxis=axis_name("x", index),
            yaxis=axis_name("y", index),
            text=[[f"“{pair}” on {name}" for pair in pairs] for name in names],
            hovertemplate="%{text}: %{z:+.3g} nats<extra></extra>",
        )
        ticks = {"tickfont": {"family": MONO, "size": 11}, "showgrid": False, "zeroline": False}
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axis_name("y", index),
            "tickvals": x,
            "ticktext": pairs,
            "tickangle": -55,
            "range": [-0.6, len(pairs) - 0.4],
            **ticks,
            "title": {"text": "updating pair"},
        }
        layout[axis_key("y", index)] = {
            "anchor": axis_name("x", index),
            "tickvals": y,
            "ticktext": names,
            "range": [len(names) - 0.4, -0.6],
            "showticklabels": index == 1,
            **ticks,
        }
        annotations.append(panel_title(plotly_text(one.label, 32), domain[0], 1.01))
    limits = {part: _limit(found) for part, found in grids.items()}
    end = limits["whole pair"]
    layout["coloraxis"] = {
        "colorscale": DIVERGING,
        "cmid": 0,
        "cmin": -end,
        "cmax": end,
        "colorbar": {"title": {"text": "nats", "side": "top"}, "thickness": 12, "nticks": 7},
    }
    layout["annotations"] = annotations
    if any(row.from_rejected for one in checkpoints for row in one.totals):
        shown = [
            (
                part,
                [
                    {"z": [grid.tolist() for grid in found]},
                    {"coloraxis.cmin": -limits[part], "coloraxis.cmax": limits[part]},
                ],
            )
            for part, found in grids.items()
        ]
        layout["updatemenus"] = [buttons(shown, 1.06)]
    figure.update_layout(**layout)
    return Plate(
        "pairs",
        "Which pair pushes which answer",
        _message(checkpoints),
        "A cell: the push of the column's pair on the row's answer, summed over all tokens of "
        "both: green raises log π, brown lowers it. The buttons part it into what goes through "
        "the pair's chosen tokens (the pull up) and through its rejected ones (the push down). "
        "Rows add up to what the whole step does. Held-out answers are marked °. Colours end at "
        "the 98th percentile.",
        figure,
    )


def _answer(row: PairForce) -> tuple[str, str, str]:
    return row.kind, row.split, row.observed_id


def _names(rows: Sequence[PairForce]) -> tuple[list[str], list[str]]:
    answers = dict.fromkeys(_answer(row) for row in rows)
    pairs = dict.fromkeys(row.updating_id for row in rows)
    marks = {"train": "", "heldout": "°"}
    return (
        [
            f"{plotly_text(kind, 14)} {plotly_text(name, 12)}{marks[split]}"
            for kind, split, name in _in_order(answers)
        ],
        [plotly_text(pair, 12) for pair in pairs],
    )


def _in_order(answers: dict[tuple[str, str, str], None]) -> list[tuple[str, str, str]]:
    """Kind after kind, in each the training answers first."""
    kinds = list(dict.fromkeys(kind for kind, _, _ in answers))
    return sorted(answers, key=lambda at: (kinds.index(at[0]), at[1] == "heldout"))


def _grid(rows: Sequence[PairForce], value: Callable[[PairForce], float]) -> ndarray:
    answers = _in_order(dict.fromkeys(_answer(row) for row in rows))
    pairs = list(dict.fromkeys(row.updating_id for row in rows))
    grid = np.zeros((len(answers), len(pairs)))
    for row in rows:
        grid[answers.index(_answer(row)), pairs.index(row.updating_id)] = value(row)
    return grid


def _limit(grids: Sequence[ndarray]) -> float:
    return float(np.quantile(np.abs(np.concatenate([g.ravel() for g in grids])), 0.98)) or 1.0


def _message(checkpoints: Sequence[CheckpointForces]) -> str:
    kind = checkpoints[0].totals[0].kind
    parts = []
    for one in checkpoints:
        rows = [row for row in one.totals if row.kind == kind]
        own = [row for row in rows if row.observed_id == row.updating_id]
        others = [row for row in rows if row.observed_id != row.updating_id]
        said = [
            f"{words} by {_mean(found)} nats"
            for words, found in ((f"its own {kind} answer", own), ("another's", others))
            if found
        ]
        parts.append(f"at {one.label} {join(said)}")
    return f"On average a pair moves {'; '.join(parts)}."


def _mean(rows: Sequence[PairForce]) -> str:
    """Mean total, and its two sides where there are two."""
    plus = float(np.mean([row.from_chosen for row in rows]))
    minus = float(np.mean([row.from_rejected for row in rows]))
    total = number(plus + minus, 2, sign=True)
    if not minus:
        return total
    return f"{total} (y⁺ {number(plus, 2, sign=True)}, y⁻ {number(minus, 2, sign=True)})"
