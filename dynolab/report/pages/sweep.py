"""The page of a sweep: every trial's value against what it was given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from dynolab.report.files import write_text
from dynolab.report.page import Html, Tile, page, plate_section, section, table, text, tiles
from dynolab.report.style import (
    BEST,
    CHOSEN,
    INK,
    Plate,
    axis_key,
    axis_name,
    base_layout,
    columns,
    number,
    plotly_text,
)
from dynolab.results.sweep import TrialRow

WIDE = 20.0
"""A setting whose largest value is so many times its smallest is drawn by orders of magnitude."""


def write_sweep_page(
    file: Path, *, name: str, metric: str, direction: str, rows: Sequence[TrialRow]
) -> None:
    """Writes a page that stands alone: best trial, figure, table."""
    best = best_of(rows, direction)
    plate = sweep_plate(rows, metric, best)
    body = [
        Html(
            f"<header><h1>{text(name)}</h1><p class='lead'>"
            f"{text(_lead(rows, metric, direction))}</p>"
        ),
        tiles(_tiles(rows, metric, best)),
        Html("</header><main>"),
        *([plate_section(plate)] if plate else []),
        _trials(rows, metric, best),
        Html("<footer>Made by Dynolab. This page loads nothing from anywhere.</footer></main>"),
    ]
    write_text(file, page(f"Dynolab: {name}", body, get_plotlyjs()))


def best_of(rows: Sequence[TrialRow], direction: str) -> TrialRow | None:
    """The best complete trial, if there is one."""
    sign = 1 if direction == "maximize" else -1
    whole = [row for row in rows if row.state == "complete" and row.value is not None]
    return max(whole, key=lambda row: sign * (row.value or 0.0), default=None)


def sweep_plate(rows: Sequence[TrialRow], metric: str, best: TrialRow | None) -> Plate | None:
    """Value against each setting, one panel a setting; pruned trials at their last value."""
    known = [row for row in rows if row.value is not None]
    if not known:
        return None
    settings = list(dict.fromkeys(name for row in known for name in row.settings))
    figure = go.Figure()
    layout = base_layout(360, margin={"l": 72, "r": 24, "t": 32, "b": 84})
    for index, (name, domain) in enumerate(
        zip(settings, columns(len(settings), 0.08), strict=True), start=1
    ):
        for state, color, symbol in (("complete", CHOSEN, "circle"), ("pruned", INK, "x")):
            shown = [row for row in known if row.state == state and name in row.settings]
            figure.add_scatter(
                x=[row.settings[name] for row in shown],
                y=[row.value for row in shown],
                mode="markers",
                name=state,
                legendgroup=state,
                showlegend=index == 1,
                marker={"color": color, "symbol": symbol, "size": 10},
                text=[f"trial {row.number}" for row in shown],
                xaxis=axis_name("x", index),
                yaxis=axis_name("y", index),
            )
        if best is not None and name in best.settings:
            figure.add_scatter(
                x=[best.settings[name]],
                y=[best.value],
                mode="markers",
                name="best",
                legendgroup="best",
                showlegend=index == 1,
                hoverinfo="skip",
                marker={"color": BEST, "symbol": "circle-open", "size": 18, "line": {"width": 3}},
                xaxis=axis_name("x", index),
                yaxis=axis_name("y", index),
            )
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axis_name("y", index),
            "title": {"text": plotly_text(name)},
            **_scale(known, name),
        }
        layout[axis_key("y", index)] = {
            "anchor": axis_name("x", index),
            "title": {"text": plotly_text(metric) if index == 1 else ""},
        }
    figure.update_layout(layout)
    message = f"{len(known)} trials by what they were given."
    if best is not None:
        message = f"Trial {best.number} is best: {_told(best)} gives {number(best.value)}."
    note = (
        "Every point is a trial. A pruned one was ended early: it stands at the last value that "
        "was known. One seed each: a difference may be chance."
    )
    return Plate("sweep", "What each setting gives", message, note, figure)


def _scale(rows: Sequence[TrialRow], name: str) -> dict[str, str]:
    values = [row.settings[name] for row in rows if name in row.settings]
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        return {"type": "category"}
    wide = min(numbers) > 0 and max(numbers) / min(numbers) >= WIDE
    return {"type": "log"} if wide else {}


def _lead(rows: Sequence[TrialRow], metric: str, direction: str) -> str:
    counts = {
        state: sum(row.state == state for row in rows)
        for state in ("complete", "pruned", "failed", "running")
    }
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{len(rows)} trials ({told}). What counts is {metric}; the aim is to {direction} it."


def _tiles(rows: Sequence[TrialRow], metric: str, best: TrialRow | None) -> list[Tile]:
    values = [row.value for row in rows if row.state == "complete" and row.value is not None]
    if best is None:
        return []
    return [
        Tile("Best", number(best.value), metric),
        Tile("Best trial", str(best.number), _told(best)),
        Tile("Spread", number(max(values) - min(values)), "largest less smallest value"),
    ]


def _told(row: TrialRow) -> str:
    return ", ".join(f"{name.rpartition('.')[2]} = {value}" for name, value in row.settings.items())


def _trials(rows: Sequence[TrialRow], metric: str, best: TrialRow | None) -> Html:
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
    head = ("trial", "ended", *settings, metric, "MLflow run")
    return section(
        "trials",
        "Every trial",
        f"{len(rows)} trials in the order they were asked for.",
        table(head, lines, "nl" + "n" * len(settings) + "nl"),
    )
