"""The figures of the kernel: how strongly answers are coupled, and whether their order stays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from dynolab.report.inputs.study import Kernel
from dynolab.report.style import (
    CHOSEN,
    FLAT,
    MONO,
    Plate,
    axis_key,
    axis_name,
    base_layout,
    columns,
    join,
    number,
    panel_title,
    plotly_text,
)
from dynolab.results.forces import AgreementRow, KernelSizeRow

_SCALE = [[0.0, FLAT], [1.0, CHOSEN]]
_MARKS = {"holds": "✓", "breaks down": "✗", "unclear": "?"}
_SAID = {"holds": "holds", "breaks down": "breaks down", "unclear": "is unclear"}


def kernel_size_plate(kernel: Kernel) -> Plate:
    """‖CKC‖ of every observed and updating answer, one panel a checkpoint, colours in decades."""
    figure = go.Figure()
    labels = kernel.findings.labels
    by_label = {label: [row for row in kernel.sizes if row.label == label] for label in labels}
    rows = _answers(by_label[labels[0]])
    height = 190 + max(200, 20 * len(rows))
    layout = base_layout(height, margin={"l": 170, "r": 24, "t": 48, "b": 96})
    annotations = []
    for index, (label, domain) in enumerate(
        zip(labels, columns(len(labels), 0.03), strict=True), start=1
    ):
        found = by_label[label]
        answers = _answers(found)
        pairs = list(dict.fromkeys(row.updating_id for row in found))
        at = {(_answer(row), row.updating_id): row for row in found}
        grid = [[at[answer, pair] for pair in pairs] for answer in answers]
        names = [_name(answer) for answer in answers]
        figure.add_heatmap(
            z=np.log10([[row.centred for row in line] for line in grid]),
            x=np.arange(len(pairs)),
            y=np.arange(len(names)),
            coloraxis="coloraxis",
            xgap=1,
            ygap=1,
            xaxis=axis_name("x", index),
            yaxis=axis_name("y", index),
            text=[[_told(row) for row in line] for line in grid],
            hovertemplate="%{text}<extra></extra>",
        )
        ticks = {"tickfont": {"family": MONO, "size": 11}, "showgrid": False, "zeroline": False}
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axis_name("y", index),
            "tickangle": -55,
            "tickvals": np.arange(len(pairs)),
            "ticktext": [plotly_text(p, 12) for p in pairs],
            "range": [-0.6, len(pairs) - 0.4],
            "title": {"text": "updating chosen answer"},
            **ticks,
        }
        layout[axis_key("y", index)] = {
            "anchor": axis_name("x", index),
            "tickvals": np.arange(len(names)),
            "ticktext": names,
            "range": [len(names) - 0.4, -0.6],
            "showticklabels": index == 1,
            **ticks,
        }
        annotations.append(panel_title(plotly_text(label, 32), domain[0], 1.01))
    logs = np.log10([row.centred for row in kernel.sizes])
    marks = _marks(float(logs.min()), float(logs.max()))
    layout["coloraxis"] = {
        "colorscale": _SCALE,
        "cmin": float(logs.min()),
        "cmax": float(logs.max()),
        "colorbar": {
            "title": {"text": "‖CKC‖", "side": "top"},
            "thickness": 12,
            "tickvals": np.log10(marks),
            "ticktext": [number(mark) for mark in marks],
        },
    }
    layout["annotations"] = annotations
    figure.update_layout(**layout)
    return Plate(
        "kernel-sizes",
        "How strongly answers are coupled",
        _size_message(kernel, by_label),
        "A cell: the Frobenius norm of the kernel K between all logits of the row's and the "
        "column's answer, without the shift of all logits that no probability sees. It is "
        f"estimated: {kernel.findings.rank} leading directions exactly, the rest by "
        f"{kernel.findings.probes} random vectors; standard errors stand in the hover text. "
        f"Held-out answers are marked °.{_adapters(kernel.findings.adapters)}",
        figure,
    )


def _adapters(labels: Sequence[str]) -> str:
    return f" At {join(labels)} it is the kernel of the adapters alone." if labels else ""


def stability_plate(kernel: Kernel) -> Plate | None:
    """Rank correlation of the sizes between every two checkpoints, with interval and verdict."""
    findings = kernel.findings
    if not findings.agreements:
        return None
    labels = [plotly_text(label, 24) for label in findings.labels]
    places = {label: at for at, label in enumerate(findings.labels)}
    grid = np.full((len(labels), len(labels)), np.nan)
    words = [["" for _ in labels] for _ in labels]
    for one in findings.agreements:
        at = places[one.second], places[one.first]
        grid[at] = one.correlation
        words[at[0]][at[1]] = (
            f"<b>{number(one.correlation, 2)}</b> [{number(one.low, 2)}, {number(one.high, 2)}]"
            f"<br>{_MARKS[one.verdict]} {one.verdict}"
        )
    figure = go.Figure()
    figure.add_heatmap(
        z=grid[1:, :-1],
        x=labels[:-1],
        y=labels[1:],
        text=[row[:-1] for row in words[1:]],
        texttemplate="%{text}",
        colorscale=_SCALE,
        zmin=0,
        zmax=1.6,
        xgap=2,
        ygap=2,
        showscale=False,
        hoverongaps=False,
        hovertemplate="%{x} and %{y}: %{z:.3f}<extra></extra>",
    )
    ticks = {"showgrid": False, "zeroline": False, "type": "category"}
    figure.update_layout(
        **base_layout(
            130 + 80 * (len(labels) - 1), xaxis=ticks, yaxis={**ticks, "autorange": "reversed"}
        )
    )
    return Plate(
        "kernel-stability",
        "Do the same answers stay coupled?",
        _stability_message(findings.agreements, findings.threshold),
        "A cell: Spearman's rank correlation of the sizes above over all pairs of answers at two "
        "checkpoints, with its 95% interval over redrawn answers. It holds where the whole "
        f"interval lies above {number(findings.threshold)}, breaks down where it lies below "
        f"{number(findings.threshold)} of what estimation noise leaves possible, and is unclear "
        "else. Where the order holds, forces found at one checkpoint speak of the other.",
        figure,
    )


def _marks(low: float, high: float) -> list[float]:
    """Round numbers, 1, 2 and 5 of every decade, from 10^low to 10^high."""
    decades = range(math.floor(low), math.ceil(high) + 1)
    every = [mantissa * 10.0**decade for decade in decades for mantissa in (1, 2, 3, 5)]
    return [mark for mark in every if low <= math.log10(mark) <= high]


def _answer(row: KernelSizeRow) -> tuple[str, str, str]:
    return row.kind, row.split, row.observed_id


def _answers(rows: Sequence[KernelSizeRow]) -> list[tuple[str, str, str]]:
    found = dict.fromkeys(_answer(row) for row in rows)
    kinds = list(dict.fromkeys(kind for kind, _, _ in found))
    return sorted(found, key=lambda at: (kinds.index(at[0]), at[1] == "heldout"))


def _name(answer: tuple[str, str, str]) -> str:
    kind, split, name = answer
    return f"{plotly_text(kind, 14)} {plotly_text(name, 12)}{'°' if split == 'heldout' else ''}"


def _told(row: KernelSizeRow) -> str:
    pair, observed = plotly_text(row.updating_id, 24), plotly_text(row.observed_id, 24)
    return (
        f"“{pair}” and {plotly_text(row.kind, 14)} of “{observed}”: {number(row.centred)} ± "
        f"{number(row.centred_error, 2)}<br>95% [{number(row.low)}, {number(row.high)}], with the "
        f"shift {number(row.raw)} ± {number(row.raw_error, 2)}"
    )


def _size_message(kernel: Kernel, by_label: dict[str, list[KernelSizeRow]]) -> str:
    parts = []
    for label, rows in by_label.items():
        own = [row.centred for row in rows if row.observed_id == row.updating_id]
        others = [row.centred for row in rows if row.observed_id != row.updating_id]
        text = f"at {label} two answers' kernel has size {_rounded(others)}"
        if own:
            text += f" (median; an answer's with itself {_rounded(own)})"
        parts.append(text)
    error = np.median([row.centred_error / row.centred for row in kernel.sizes])
    text = f"{'; '.join(parts)}. The median standard error is {error:.1%}."
    return text.replace("at ", "At ", 1)


def _rounded(sizes: Sequence[float]) -> str:
    """Their median to two digits."""
    return number(float(f"{np.median(sizes):.2g}"), 2)


def _stability_message(agreements: Sequence[AgreementRow], threshold: float) -> str:
    said = [
        f"{_SAID[one.verdict]} from {one.first} to {one.second} ({number(one.correlation, 2)} "
        f"[{number(one.low, 2)}, {number(one.high, 2)}], sizes {_growth(one.growth)})"
        for one in agreements
    ]
    noisy = [f"{one.first} and {one.second}" for one in agreements if one.ceiling < threshold]
    noise = (
        f" Between {join(noisy)} nothing can be told: at one of the two the sizes differ by little "
        "more than their estimation noise."
        if noisy
        else ""
    )
    return f"Against a threshold of {number(threshold)}, the order of coupling {join(said)}.{noise}"


def _growth(growth: float) -> str:
    return f"{growth:+.0%}".replace("-", "−")
