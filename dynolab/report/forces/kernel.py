"""Figures of the kernel: how strongly answers are coupled, and whether the order of pairs lasts."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
from dynolab.report.style import SEQUENTIAL
from dynolab.report.text import join, number, plotly_text, true_minus
from dynolab.results.forces import AgreementRow, KernelSizeRow

_MARKS = {"holds": "✓", "breaks down": "✗", "unclear": "?"}
_VERBS = {"holds": "holds", "breaks down": "breaks down", "unclear": "is unclear"}


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
    adapters = join(kernel.findings.adapters)
    return Figure(
        "kernel-sizes",
        "How strongly answers are coupled",
        _size_message(kernel, by_label),
        "A cell: the Frobenius norm of the kernel K between all logits of the row's and the "
        "column's answer, without a shift of all logits, which changes no probability. It is "
        f"estimated: {kernel.findings.rank} leading directions exactly, the rest with "
        f"{kernel.findings.probes} random vectors; hover for standard errors. "
        "Held-out answers are marked °."
        + (f" At {adapters} it is the kernel of the adapters alone." if adapters else ""),
        plot,
    )


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
            f"<b>{number(agreement.correlation, 2)}</b> {_ends(agreement)}"
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
    return Figure(
        "kernel-stability",
        "Do the same answers stay coupled?",
        _stability_message(findings.agreements, findings.threshold),
        "A cell: Spearman's rank correlation of the sizes above over all pairs of answers at two "
        "checkpoints, with its 95% interval over resampled answers. The order holds if the whole "
        f"interval lies above {number(findings.threshold)}, breaks down if it lies below "
        f"{number(findings.threshold)} times the highest correlation that estimation noise "
        "allows, and is otherwise unclear. If it holds, forces found at one checkpoint apply to "
        "the other.",
        plot,
    )


def _marks(low: float, high: float) -> list[float]:
    """Round numbers (1, 2, 3 and 5 of every decade) from 10^low to 10^high."""
    decades = range(math.floor(low), math.ceil(high) + 1)
    every = [mantissa * 10.0**decade for decade in decades for mantissa in (1, 2, 3, 5)]
    return [mark for mark in every if low <= math.log10(mark) <= high]


def _size(row: KernelSizeRow) -> str:
    pair, observed = plotly_text(row.updating_id, 24), plotly_text(row.observed_id, 24)
    return (
        f"“{pair}” and {plotly_text(row.kind, 14)} of “{observed}”: {number(row.centred)} ± "
        f"{number(row.centred_error, 2)}<br>95% [{number(row.low)}, {number(row.high)}], with the "
        f"shift {number(row.raw)} ± {number(row.raw_error, 2)}"
    )


def _ends(agreement: AgreementRow) -> str:
    return f"[{number(agreement.low, 2)}, {number(agreement.high, 2)}]"


def _size_message(kernel: Kernel, by_label: dict[str, list[KernelSizeRow]]) -> str:
    parts = []
    for label, rows in by_label.items():
        own = [row.centred for row in rows if row.observed_id == row.updating_id]
        others = [row.centred for row in rows if row.observed_id != row.updating_id]
        with_itself = f" (median; of an answer with itself {_median(own)})" if own else ""
        parts.append(
            f"at {label} the kernel of two answers has size {_median(others)}{with_itself}"
        )
    error = np.median([row.centred_error / row.centred for row in kernel.sizes])
    sentences = f"{'; '.join(parts)}. The median standard error is {error:.1%}."
    return sentences.replace("at ", "At ", 1)


def _median(sizes: Sequence[float]) -> str:
    """To two digits."""
    return number(float(f"{np.median(sizes):.2g}"), 2)


def _stability_message(agreements: Sequence[AgreementRow], threshold: float) -> str:
    parts = [
        f"{_VERBS[agreement.verdict]} from {agreement.first} to {agreement.second} "
        f"({number(agreement.correlation, 2)} {_ends(agreement)}, sizes "
        f"{true_minus(f'{agreement.growth:+.0%}')})"
        for agreement in agreements
    ]
    noisy = [f"{a.first} and {a.second}" for a in agreements if a.ceiling < threshold]
    noise = (
        f" Between {join(noisy)} the comparison is inconclusive: at one of the two the sizes "
        "differ by little more than their estimation noise."
        if noisy
        else ""
    )
    return (
        f"Against a threshold of {number(threshold)}, the order of coupling {join(parts)}.{noise}"
    )
