"""The page of a sweep: every trial's value against its settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynolab.report.comparison.runs import run_name
from dynolab.report.figure import Figure, subplots
from dynolab.report.page import Page, Words, page_html, table, write_text
from dynolab.report.style import BEST, CHOSEN, INK
from dynolab.report.text import number, plotly_text
from dynolab.results.sweep import TrialRow

WIDE = 20.0
"""A setting whose largest value is at least so many times its smallest has a logarithmic axis."""

_MARKS = {
    "complete": {"color": CHOSEN, "symbol": "circle", "size": 10},
    "pruned": {"color": INK, "symbol": "x", "size": 10},
    "best": {"color": BEST, "symbol": "circle-open", "size": 18, "line": {"width": 3}},
}


def write_sweep_page(
    file: Path, *, name: str, metric: str, direction: str, rows: Sequence[TrialRow]
) -> None:
    """Writes a self-contained page: best trial, figure, table."""
    sign = 1 if direction == "maximize" else -1
    complete = [row for row in rows if row.state == "complete" and row.value is not None]
    best = max(complete, key=lambda row: sign * (row.value or 0.0), default=None)
    settings = list(dict.fromkeys(name for row in rows for name in row.settings))
    lines = [
        (
            run_name(str(row.number), row is best),
            row.state,
            *(row.settings.get(name, "") for name in settings),
            number(row.value) if row.value is not None else "",
            (row.mlflow_run_id or "")[:12],
        )
        for row in rows
    ]
    head = ("trial", "ended", *settings, metric, "MLflow run")
    words = Words("sweep.html", rows=rows, metric=metric, direction=direction, best=best)
    page = Page(
        name=name,
        answer=words.lines("answer"),
        lead=words("lead"),
        content=[
            words.section("trials", table(head, lines, "ns" + "n" * len(settings) + "ns")),
            _figure([row for row in rows if row.value is not None], metric, best, words),
        ],
    )
    write_text(file, page_html(page))


def _figure(
    rows: Sequence[TrialRow], metric: str, best: TrialRow | None, words: Words
) -> Figure | None:
    """Value against each setting, one panel a setting; pruned trials at their last value."""
    settings = list(dict.fromkeys(name for row in rows for name in row.settings))
    if not settings:
        return None
    plot = subplots(
        [""] * len(settings),
        360,
        margin={"l": 72, "r": 24, "t": 32, "b": 84},
        y_title=plotly_text(metric),
    )
    for col, name in enumerate(settings, start=1):
        for group, marker in _MARKS.items():
            own = [row for row in rows if (row is best if group == "best" else row.state == group)]
            shown = [row for row in own if name in row.settings]
            plot.add_scatter(
                x=[row.settings[name] for row in shown],
                y=[row.value for row in shown],
                mode="markers",
                name=group,
                legendgroup=group,
                showlegend=col == 1 and bool(own),
                hoverinfo="skip" if group == "best" else None,
                marker=marker,
                text=[f"trial {row.number}" for row in shown],
                row=1,
                col=col,
            )
        plot.update_xaxes(title_text=plotly_text(name), type=_scale(rows, name), col=col)
    return words.figure("sweep", plot)


def _scale(rows: Sequence[TrialRow], name: str) -> str | None:
    """The type of a setting's axis; None leaves it to plotly."""
    values = [row.settings[name] for row in rows if name in row.settings]
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        return "category"
    return "log" if min(numbers) > 0 and max(numbers) / min(numbers) >= WIDE else None
