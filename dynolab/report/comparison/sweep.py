"""The page of a sweep: its trials, their settings and metrics, and how they learned."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from dynolab.report.figure import LEGEND_ABOVE, Figure, empty_plot, subplots
from dynolab.report.page import Words, page_html, table, write_text
from dynolab.report.style import (
    BEST,
    CHOSEN,
    INK,
    MUTED,
    PAPER,
    ZERO,
    arm_style,
    number,
    plotly_text,
)
from dynolab.report.tables import run_name
from dynolab.results.sweep import Scalar, TrialRow

WIDE = 20.0
"""A setting whose largest value is at least so many times its smallest has a logarithmic axis."""

MANY = 12
"""Paths of more trials, or by several settings, are coloured by their ends and have no legend."""

_MARKS = {
    "complete": {"color": CHOSEN, "symbol": "circle", "size": 10},
    "pruned": {"color": INK, "symbol": "x", "size": 10},
    "best": {"color": BEST, "symbol": "circle-open", "size": 18, "line": {"width": 3}},
}


@dataclass(frozen=True)
class SweepFigures:
    """The figures of a sweep.

    `rows`: trials with values, the best by the first metric first; `settings`: dotted name → the
    name that is shown.
    """

    rows: Sequence[TrialRow]
    objectives: Mapping[str, str]
    best: Collection[int]
    settings: Mapping[str, str]
    words: Words

    def values(self) -> Figure | None:
        """The first metric against each setting; pruned trials at their last value."""
        if not self.settings:
            return None
        metric = next(iter(self.objectives))
        plot = subplots(
            [""] * len(self.settings),
            360,
            margin={"l": 72, "r": 24, "t": 32, "b": 84},
            y_title=plotly_text(metric),
        )
        for col, (name, shown) in enumerate(self.settings.items(), start=1):
            self._add_marks(plot, name, metric, row=1, col=col)
            scale = _scale([row.settings[name] for row in self.rows if name in row.settings])
            plot.update_xaxes(title_text=plotly_text(shown), type=scale, col=col)
        return self.words.figure("values", plot)

    def front(self) -> Figure | None:
        """The second metric against the first, with a line through the trials that are best."""
        if len(self.objectives) < 2:
            return None
        x, y, *_ = self.objectives
        plot = empty_plot(420, margin={"l": 72, "r": 24, "t": 32, "b": 60})
        best = [(row.values[x], row.values[y]) for row in self.rows if row.number in self.best]
        plot.add_scatter(
            x=[at for at, _ in sorted(best)],
            y=[at for _, at in sorted(best)],
            mode="lines",
            line={"color": BEST, "width": 1.5, "dash": "dot"},
            hoverinfo="skip",
            showlegend=False,
        )
        self._add_marks(plot, x, y)
        plot.update_layout(legend=LEGEND_ABOVE)
        plot.update_xaxes(title_text=plotly_text(self._aim(x)))
        plot.update_yaxes(title_text=plotly_text(self._aim(y)))
        return self.words.figure("front", plot)

    def parallel(self) -> Figure | None:
        """A line for each trial through its settings and metrics, on axes side by side."""
        axes = {**self.settings, **{name: self._aim(name) for name in self.objectives}}
        if len(self.settings) < 2:
            return None
        heights: dict[str, dict[int, float]] = {}
        plot = empty_plot(460, margin={"l": 24, "r": 90, "t": 64, "b": 40})
        for place, axis in enumerate(axes):
            at = {row.number: {**row.values, **row.settings}.get(axis) for row in self.rows}
            values = {number: value for number, value in at.items() if value is not None}
            heights[axis], ticks = _heights(values)
            for height, text in ticks.items():
                plot.add_annotation(
                    x=place,
                    y=height,
                    text=plotly_text(text, 16),
                    xanchor="left",
                    xshift=5,
                    showarrow=False,
                    font={"size": 11, "color": MUTED},
                    bgcolor=PAPER,
                    opacity=0.85,
                )
        for row in reversed(self.rows):  # the best on top
            plot.add_scatter(
                x=list(range(len(axes))),
                y=[heights[axis].get(row.number) for axis in axes],
                mode="lines+markers",
                marker={"size": 5},
                showlegend=False,
                text=[self._about(row)] * len(axes),
                hovertemplate="%{text}<extra></extra>",
                **self._line(row),
            )
        plot.update_xaxes(
            tickvals=list(range(len(axes))),
            ticktext=[plotly_text(name, 30) for name in axes.values()],
            gridcolor=ZERO,
            zeroline=False,
            range=[-0.15, len(axes) - 0.6],
            side="top",
        )
        plot.update_yaxes(visible=False, range=[-0.06, 1.06])
        return self.words.figure("parallel", plot)

    def importance(self, importances: Mapping[str, Mapping[str, float]]) -> Figure | None:
        """Bars of each setting's share in the variance of each metric."""
        if not importances:
            return None
        plot = empty_plot(130 + 40 * len(self.settings), legend=LEGEND_ABOVE)
        for place, (metric, shares) in enumerate(importances.items()):
            plot.add_bar(
                x=[round(share, 4) for share in shares.values()],
                y=[plotly_text(self.settings.get(name, name), 40) for name in shares],
                orientation="h",
                name=plotly_text(metric),
                marker={"color": arm_style(place)[0]},
                hovertemplate="%{y}: %{x:.0%}<extra></extra>",
            )
        plot.update_layout(showlegend=len(importances) > 1)
        plot.update_xaxes(tickformat=".0%", range=[0, 1], title_text="share of the variance")
        plot.update_yaxes(autorange="reversed", showgrid=False)
        return self.words.figure("importance", plot)

    def paths(self) -> Figure | None:
        """Metrics of all trials along their trainings, over each other."""
        metrics = list(dict.fromkeys(name for row in self.rows for name in row.paths))
        if not metrics:
            return None
        plot = subplots([plotly_text(name) for name in metrics], 440, x={"title_text": "step"})
        named = len(self.rows) <= MANY and len(self.settings) == 1
        in_order = sorted(self.rows, key=lambda row: row.number)
        for col, metric in enumerate(metrics, start=1):
            for row in in_order if named else reversed(self.rows):
                steps, values = zip(*row.paths.get(metric, [(None, None)]), strict=True)
                line = self._line(row)
                if named:
                    color, dash = arm_style(in_order.index(row))
                    line = {"line": {**line["line"], "color": color, "dash": dash}}
                plot.add_scatter(
                    x=steps,
                    y=values,
                    mode="lines",
                    name=plotly_text(_point(row, self.settings)[0]) if named else "",
                    legendgroup=row.number,
                    showlegend=named and col == 1,
                    text=[self._about(row)] * len(steps),
                    hovertemplate="step %{x}: %{y:.4g}<br>%{text}<extra></extra>",
                    row=1,
                    col=col,
                    **line,
                )
        return self.words.figure("paths", plot)

    def _add_marks(self, plot: go.Figure, x: str, y: str, **where: int) -> None:
        """A mark for every trial, and a ring around the best."""
        for group, marker in _MARKS.items():
            shown = [
                row
                for row in self.rows
                if (row.number in self.best if group == "best" else row.state == group)
                and {x, y} <= {*row.settings, *row.values}
            ]
            plot.add_scatter(
                x=[row.settings.get(x, row.values.get(x)) for row in shown],
                y=[row.values[y] for row in shown],
                mode="markers",
                name=group,
                legendgroup=group,
                showlegend=where.get("col", 1) == 1 and bool(shown),
                marker=marker,
                text=[self._about(row) for row in shown],
                hovertemplate=None if group == "best" else "%{text}<extra></extra>",
                hoverinfo="skip" if group == "best" else None,
                **where,
            )

    def _line(self, row: TrialRow) -> dict[str, Any]:
        """How a trial's line looks: the worse by the first metric, the fainter."""
        if row.number in self.best:
            return {"line": {"color": BEST, "width": 4}}
        if row.state != "complete":
            return {"line": {"color": INK, "width": 1.5, "dash": "dot"}, "opacity": 0.5}
        rank = self.rows.index(row) / len(self.rows)
        return {"line": {"color": CHOSEN, "width": 2}, "opacity": 0.95 - 0.7 * rank}

    def _about(self, row: TrialRow) -> str:
        return plotly_text(", ".join([f"trial {row.number}", *_point(row, self.settings)]), 200)

    def _aim(self, metric: str) -> str:
        return f"{metric} {'↑' if self.objectives[metric] == 'maximize' else '↓'}"


def write_sweep_page(
    file: Path,
    *,
    name: str,
    objectives: Mapping[str, str],
    settings: Mapping[str, str],
    rows: Sequence[TrialRow],
    best: Collection[int] = (),
    importances: Mapping[str, Mapping[str, float]] | None = None,
    compare: str = "",
) -> None:
    """Writes a self-contained page: best trials, table, figures.

    **Arguments:** `objectives`: metric → maximize or minimize, the first one first; `settings`:
    dotted names of those that differ between trials → the names that are shown; `best`: numbers
    of the best trials; `importances`: metric → setting → share; `compare`: address of MLflow's
    comparison.
    """
    first, sign = next(iter(objectives)), {"maximize": -1, "minimize": 1}
    rows = sorted(
        rows,
        key=lambda row: (
            row.state != "complete",
            sign[objectives[first]] * row.values.get(first, math.inf),
        ),
    )
    metrics = list(dict.fromkeys([*objectives, *(name for row in rows for name in row.values)]))
    lines = [
        (
            run_name(str(row.number), row.number in best),
            row.state,
            *(number(row.values.get(name), 4) for name in metrics),
            *(_text(row.settings.get(name, "")) for name in settings),
            (row.mlflow_run_id or "")[:8],
        )
        for row in rows
    ]
    head = ("trial", "ended", *metrics, *settings.values(), "MLflow run")
    words = Words(
        "sweep.html",
        rows=rows,
        objectives=objectives,
        best=[row for row in rows if row.number in best],
        settings=settings,
        points={row.number: ", ".join(_point(row, settings)) for row in rows},
        importances=importances or {},
        compare=compare,
    )
    figures = SweepFigures([row for row in rows if row.values], objectives, best, settings, words)
    page = words.page(
        name,
        content=[
            words.section("trials", table(head, lines, "ns" + "n" * (len(head) - 3) + "s")),
            figures.values(),
            figures.front(),
            figures.parallel(),
            figures.importance(importances or {}),
            figures.paths(),
        ],
    )
    write_text(file, page_html(page))


def _point(row: TrialRow, settings: Mapping[str, str]) -> list[str]:
    """A trial's settings by their shown names."""
    return [f"{shown} = {_text(row.settings[name])}" for name, shown in settings.items()]


def _text(value: Scalar) -> str:
    return number(value, 4) if isinstance(value, float) else str(value)


def _scale(values: Sequence[Scalar]) -> str | None:
    """The type of a setting's axis; None leaves it to plotly."""
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        return "category"
    return "log" if numbers and 0 < WIDE * min(numbers) <= max(numbers) else None


def _heights(values: Mapping[int, Scalar]) -> tuple[dict[int, float], dict[float, str]]:
    """Places of trials' values on an axis from 0 to 1, and the axis's ticks with their texts."""
    scale = _scale(list(values.values()))
    kinds = sorted({str(value) for value in values.values()})
    if scale == "category":
        at = {trial: float(kinds.index(str(value))) for trial, value in values.items()}
    else:
        at = {
            trial: math.log10(float(value)) if scale else float(value)
            for trial, value in values.items()
        }
    low, high = min(at.values(), default=0.0), max(at.values(), default=1.0)
    heights = {trial: (place - low) / ((high - low) or 1.0) for trial, place in at.items()}
    return heights, {
        heights[trial]: _text(value)
        for trial, value in values.items()
        if len(kinds) <= 8 or at[trial] in (low, high)
    }
