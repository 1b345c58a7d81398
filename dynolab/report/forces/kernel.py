"""Figures of the kernel: how strongly answers are coupled, and whether the order of pairs lasts."""

from __future__ import annotations

import math

import numpy as np

from dynolab.report.figure import Figure, correlation_plot, subplots
from dynolab.report.forces.pair_matrix import (
    TICKS,
    add_answer_cells,
    answer_name,
    answer_of,
    answers_of,
)
from dynolab.report.inputs.study import Kernel
from dynolab.report.page import Words
from dynolab.report.style import SEQUENTIAL
from dynolab.report.text import number, plotly_text
from dynolab.results.forces import KernelSizeRow

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
