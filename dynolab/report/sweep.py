"""The page of a sweep: every trial's value against its settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynolab.report.figure import Figure, subplots
from dynolab.report.page import Page, Section, Tile, page_html, section, table, write_text
from dynolab.report.style import BEST, CHOSEN, INK
from dynolab.report.text import number, plotly_text
from dynolab.results.sweep import TrialRow

WIDE = 20.0
"""A setting whose largest value is at least so many times its smallest has a logarithmic axis."""


def write_sweep_page(
    file: Path, *, name: str, metric: str, direction: str, rows: Sequence[TrialRow]
) -> None:
    """Writes a self-contained page: best trial, figure, table."""
    best = best_of(rows, direction)
    page = Page(
        name=name,
        lead=_lead(rows, metric, direction),
        tiles=_tiles(rows, metric, best),
        content=[sweep_figure(rows, metric, best), _trials(rows, metric, best)],
    )
    write_text(file, page_html(page))


def best_of(rows: Sequence[TrialRow], direction: str) -> TrialRow | None:
    """The best complete trial, if there is one."""
    sign = 1 if direction == "maximize" else -1
    complete = [row for row in rows if row.state == "complete" and row.value is not None]
    return max(complete, key=lambda row: sign * (row.value or 0.0), default=None)


def sweep_figure(rows: Sequence[TrialRow], metric: str, best: TrialRow | None) -> Figure | None:
    """Value against each setting, one panel a setting; pruned trials at their last value."""
    known = [row for row in rows if row.value is not None]
    if not known:
        return None
    settings = list(dict.fromkeys(name for row in known for name in row.settings))
    groups = (
        ("complete", [row for row in known if row.state == "complete"], _marker(CHOSEN, "circle")),
        ("pruned", [row for row in known if row.state == "pruned"], _marker(INK, "x")),
        ("best", [best] if best else [], _marker(BEST, "circle-open", size=18, line={"width": 3})),
    )
    plot = subplots(
        [""] * len(settings),
        360,
        margin={"l": 72, "r": 24, "t": 32, "b": 84},
        y_title=plotly_text(metric),
    )
    for col, name in enumerate(settings, start=1):
        for group, trials, marker in groups:
            shown = [row for row in trials if name in row.settings]
            plot.add_scatter(
                x=[row.settings[name] for row in shown],
                y=[row.value for row in shown],
                mode="markers",
                name=group,
                legendgroup=group,
                showlegend=col == 1 and bool(trials),
                hoverinfo="skip" if group == "best" else None,
                marker=marker,
                text=[f"trial {row.number}" for row in shown],
                row=1,
                col=col,
            )
        plot.update_xaxes(title_text=plotly_text(name), type=_scale(known, name), col=col)
    message = f"{len(known)} trials by their settings."
    if best is not None:
        message = f"Trial {best.number} is best: {_settings(best)} gives {number(best.value)}."
    note = (
        "Every point is a trial. A pruned trial was stopped early and is drawn at its last known "
        "value. Each trial has one seed, so a difference may be chance."
    )
    return Figure("sweep", "Value by setting", message, note, plot)


def _marker(color: str, symbol: str, **more: Any) -> dict[str, Any]:
    return {"color": color, "symbol": symbol, "size": 10, **more}


def _scale(rows: Sequence[TrialRow], name: str) -> str | None:
    """The type of a setting's axis; None leaves it to plotly."""
    values = [row.settings[name] for row in rows if name in row.settings]
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        return "category"
    return "log" if min(numbers) > 0 and max(numbers) / min(numbers) >= WIDE else None


def _lead(rows: Sequence[TrialRow], metric: str, direction: str) -> str:
    counts = {
        state: sum(row.state == state for row in rows)
        for state in ("complete", "pruned", "failed", "running")
    }
    ended = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{len(rows)} trials ({ended}). The objective is to {direction} {metric}."


def _tiles(rows: Sequence[TrialRow], metric: str, best: TrialRow | None) -> list[Tile]:
    values = [row.value for row in rows if row.state == "complete" and row.value is not None]
    if best is None:
        return []
    return [
        Tile("Best", number(best.value), metric),
        Tile("Best trial", str(best.number), _settings(best)),
        Tile("Spread", number(max(values) - min(values)), "largest minus smallest value"),
    ]


def _settings(row: TrialRow) -> str:
    return ", ".join(f"{name.rpartition('.')[2]} = {value}" for name, value in row.settings.items())


def _trials(rows: Sequence[TrialRow], metric: str, best: TrialRow | None) -> Section:
    settings = list(dict.fromkeys(name for row in rows for name in row.settings))
    lines = [
        (
            f"{row.number}{' (best)' if best and row.number == best.number else ''}",
            row.state,
            *(row.settings.get(name, "") for name in settings),
            number(row.value) if row.value is not None else "",
            (row.mlflow_run_id or "")[:12],
        )
        for row in rows
    ]
    return section(
        "trials",
        "Every trial",
        f"{len(rows)} trials in the order in which they were started.",
        table(
            ("trial", "ended", *settings, metric, "MLflow run"),
            lines,
            "nl" + "n" * len(settings) + "nl",
        ),
    )
