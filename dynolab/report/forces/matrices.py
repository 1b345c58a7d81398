"""Figures of answers by pairs: which pair moves which answer, and how strongly they are coupled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy import ndarray

from dynolab.report.figure import CELLS, Figure, buttons, correlation_plot, subplots
from dynolab.report.inputs.study import CheckpointForces, Kernel
from dynolab.report.page import Words
from dynolab.report.style import DIVERGING, INK, MONO, SEQUENTIAL, number, plotly_text
from dynolab.results.forces import KernelSizeRow, PairForce
from dynolab.statistics import mean_interval

_PARTS = {"whole pair": "total", "through y⁺": "from_chosen", "through y⁻": "from_rejected"}
TICKS = {"tickfont": {"family": MONO, "size": 11}, **CELLS}


Observed = PairForce | KernelSizeRow
"""A row about one observed answer."""

Answer = tuple[str, str, str]
"""An observed answer: its kind, its split, its pair's id."""


def answer_of(row: Observed) -> Answer:
    """The observed answer that a row is about."""
    return row.kind, row.split, row.observed_id


def answers_of(rows: Sequence[Observed]) -> list[Answer]:
    """The observed answers: kind by kind, training answers first."""
    answers = dict.fromkeys(map(answer_of, rows))
    kinds = list(dict.fromkeys(kind for kind, _, _ in answers))
    return sorted(answers, key=lambda answer: (kinds.index(answer[0]), answer[1] == "heldout"))


def answer_name(answer: Answer) -> str:
    """An answer's axis label; held-out ones are marked."""
    kind, split, name = answer
    return f"{plotly_text(kind, 14)} {plotly_text(name, 12)}{'°' if split == 'heldout' else ''}"


def pair_matrix_figure(checkpoints: Sequence[CheckpointForces]) -> Figure:
    """Rows: observed answers; columns: updating pairs; one panel per checkpoint."""
    grids: dict[str, list[ndarray]] = {}
    limits: dict[str, float] = {}
    for part, field in _PARTS.items():
        grids[part] = [_grid(checkpoint.totals, field) for checkpoint in checkpoints]
        sizes = np.abs(np.concatenate(grids[part], axis=None))
        limits[part] = float(np.quantile(sizes, 0.98)) or 1.0
    plot = subplots(
        [plotly_text(checkpoint.label, 32) for checkpoint in checkpoints],
        190 + max(220, 20 * len(answers_of(checkpoints[0].totals))),
        space=0.03,
        margin={"l": 170, "r": 24, "t": 96, "b": 96},
        coloraxis={
            "colorscale": DIVERGING,
            "cmid": 0,
            "cmin": -limits["whole pair"],
            "cmax": limits["whole pair"],
            "colorbar": {"title": {"text": "nats", "side": "top"}, "thickness": 12, "nticks": 7},
        },
        x={"tickangle": -55, "title_text": "updating pair", **TICKS},
        y=TICKS,
    )
    mapped = [_maps(checkpoints, place) for place in range(len(checkpoints))]
    for col, checkpoint in enumerate(checkpoints, start=1):
        names = [*map(answer_name, answers_of(checkpoint.totals))]
        maps = mapped[col - 1]
        pairs = [plotly_text(pair, 12) for pair in _pairs(checkpoint.totals)]
        texts = []
        for name, line in zip(names, maps, strict=True):
            of_answer = []
            for pair, place in zip(pairs, line, strict=True):
                click = "" if place is None else " (click: its map)"
                of_answer.append(f"“{pair}” on {name}{click}")
            texts.append(of_answer)
        add_answer_cells(
            plot,
            col,
            names,
            pairs,
            z=grids["whole pair"][col - 1],
            text=texts,
            customdata=maps,
            hovertemplate="%{text}: %{z:+.3g} nats<extra></extra>",
        )
    for col, maps in enumerate(mapped, start=1):
        y, x = np.nonzero(np.isfinite(np.array(maps, dtype=float)))
        plot.add_scatter(
            x=x.tolist(),
            y=y.tolist(),
            mode="markers",
            marker={"color": INK, "size": 5},
            hoverinfo="skip",
            showlegend=False,
            row=1,
            col=col,
        )
    if any(row.from_rejected for checkpoint in checkpoints for row in checkpoint.totals):
        choices: list[tuple[str, list[Any]]] = []
        for part, of_part in grids.items():
            cells = {"z": [grid.tolist() for grid in of_part]}
            scale = {"coloraxis.cmin": -limits[part], "coloraxis.cmax": limits[part]}
            choices.append((part, [cells, scale, list(range(len(checkpoints)))]))
        plot.update_layout(updatemenus=[buttons(choices, 1.06)])
    return Words("forces.html", own=_own_and_others(checkpoints)).figure("pairs", plot)


def _own_and_others(checkpoints: Sequence[CheckpointForces]) -> dict[str, tuple[float, ...]]:
    """Mean push of a pair on its own answer and on others', of the first kind, by checkpoint."""
    kind, means = checkpoints[0].totals[0].kind, {}
    for checkpoint in checkpoints:
        rows = [row for row in checkpoint.totals if row.kind == kind]
        on_itself = np.array([row.observed_id == row.updating_id for row in rows])
        totals = np.array([row.total for row in rows])
        means[checkpoint.label] = tuple(
            mean_interval(part).mean for part in (totals[on_itself], totals[~on_itself])
        )
    return means


def _maps(checkpoints: Sequence[CheckpointForces], number: int) -> list[list[int | None]]:
    """Of a checkpoint's cells, each one's map as its place among those of all checkpoints."""
    before = sum(len(checkpoint.token_maps) for checkpoint in checkpoints[:number])
    rows, maps = checkpoints[number].totals, checkpoints[number].token_maps
    places = {
        (token_map.observed_kind, token_map.observed_id, token_map.updating_id): place
        for place, token_map in enumerate(maps, start=before)
    }
    return [
        [places.get((kind, observed, pair)) for pair in _pairs(rows)]
        for kind, _, observed in answers_of(rows)
    ]


def add_answer_cells(
    plot: go.Figure, col: int, answers: Sequence[str], pairs: Sequence[str], **cells: Any
) -> None:
    """Adds a panel of observed answers by updating pairs; names are already escaped for plotly."""
    x, y = np.arange(len(pairs)), np.arange(len(answers))
    where: dict[str, Any] = {"row": 1, "col": col}
    plot.add_heatmap(x=x, y=y, coloraxis="coloraxis", xgap=1, ygap=1, **cells, **where)
    plot.update_xaxes(tickvals=x, ticktext=pairs, range=[-0.6, len(pairs) - 0.4], **where)
    plot.update_yaxes(
        tickvals=y,
        ticktext=answers,
        range=[len(answers) - 0.4, -0.6],
        showticklabels=col == 1,
        **where,
    )


def _pairs(rows: Sequence[PairForce]) -> list[str]:
    return list(dict.fromkeys(row.updating_id for row in rows))


def _grid(rows: Sequence[PairForce], field: str) -> ndarray:
    answers, pairs = answers_of(rows), _pairs(rows)
    grid = np.zeros((len(answers), len(pairs)))
    for row in rows:
        grid[answers.index(answer_of(row)), pairs.index(row.updating_id)] = getattr(row, field)
    return grid


_MARKS = {"holds": "✓", "breaks down": "✗", "unclear": "?"}


def kernel_size_figure(kernel: Kernel) -> Figure:
    """‖CKC‖ of every observed and updating answer, one panel per checkpoint, log colours."""
    labels = kernel.findings.labels
    by_label = {label: [row for row in kernel.sizes if row.label == label] for label in labels}
    logs = np.log10([row.centred for row in kernel.sizes])
    low, high = float(logs.min()), float(logs.max())
    marks = _marks(low, high)
    plot = subplots(
        [plotly_text(label, 32) for label in labels],
        190 + max(200, 20 * len(answers_of(by_label[labels[0]]))),
        space=0.03,
        margin={"l": 170, "r": 24, "t": 48, "b": 96},
        coloraxis={
            "colorscale": SEQUENTIAL,
            "cmin": low,
            "cmax": high,
            "colorbar": {
                "title": {"text": "‖CKC‖", "side": "top"},
                "thickness": 12,
                "tickvals": np.log10(marks),
                "ticktext": [*map(number, marks)],
            },
        },
        x={"tickangle": -55, "title_text": "updating chosen answer", **TICKS},
        y=TICKS,
    )
    for col, rows in enumerate(by_label.values(), start=1):
        answers = answers_of(rows)
        pairs = list(dict.fromkeys(row.updating_id for row in rows))
        by_cell = {(answer_of(row), row.updating_id): row for row in rows}
        grid = [[by_cell[answer, pair] for pair in pairs] for answer in answers]
        add_answer_cells(
            plot,
            col,
            [*map(answer_name, answers)],
            [plotly_text(pair, 12) for pair in pairs],
            z=np.log10([[row.centred for row in line] for line in grid]),
            text=[[_size(row) for row in line] for line in grid],
            hovertemplate="%{text}<extra></extra>",
        )
    medians = {
        label: float(np.median([r.centred for r in rows if r.observed_id != r.updating_id]))
        for label, rows in by_label.items()
    }
    error = float(np.median([row.centred_error / row.centred for row in kernel.sizes]))
    words = Words("forces.html", kernel=kernel.findings, medians=medians, error=error)
    return words.figure("kernel-sizes", plot)


def stability_figure(kernel: Kernel) -> Figure | None:
    """Rank correlation of the sizes between every two checkpoints, with interval and verdict."""
    findings = kernel.findings
    if not findings.agreements:
        return None
    labels = [plotly_text(label, 24) for label in findings.labels]
    places = {label: place for place, label in enumerate(findings.labels)}
    grid = np.full((len(labels), len(labels)), np.nan)
    words = np.full(grid.shape, "", dtype=object)
    for agreement in findings.agreements:
        cell = places[agreement.second], places[agreement.first]
        grid[cell] = agreement.correlation
        words[cell] = (
            f"<b>{number(agreement.correlation, 2)}</b> "
            f"[{number(agreement.low, 2)}, {number(agreement.high, 2)}]"
            f"<br>{_MARKS[agreement.verdict]} {agreement.verdict}"
        )
    plot = correlation_plot(
        130 + 80 * (len(labels) - 1),
        z=grid[1:, :-1],
        x=labels[:-1],
        y=labels[1:],
        text=words[1:, :-1].tolist(),
        colorscale=SEQUENTIAL,
        zmin=0,
        zmax=1.6,
        showscale=False,
        hoverongaps=False,
    )
    return Words("forces.html", kernel=findings).figure("kernel-stability", plot)


def _marks(low: float, high: float) -> list[float]:
    """Round numbers (1, 2, 3 and 5 of every decade) from 10^low to 10^high."""
    decades = range(math.floor(low), math.ceil(high) + 1)
    every = [mantissa * 10.0**decade for decade in decades for mantissa in (1, 2, 3, 5)]
    return [mark for mark in every if low <= math.log10(mark) <= high]


def _size(row: KernelSizeRow) -> str:
    pair, observed = plotly_text(row.updating_id, 24), plotly_text(row.observed_id, 24)
    return (
        f"“{pair}” and {plotly_text(row.kind, 14)} of “{observed}”: {number(row.centred)} ± "
        f"{number(row.centred_error, 2)}<br>with the shift of all logits {number(row.raw)} ± "
        f"{number(row.raw_error, 2)}"
    )
