"""The token force map: which updating token pushed which observed token, and by how much."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from dynolab.report.style import (
    CHOSEN,
    DIVERGING,
    INK,
    MONO,
    PAPER,
    REJECTED,
    Plate,
    base_layout,
    number,
    objective_name,
    panel_title,
    plotly_text,
    token_text,
)
from dynolab.results.study import TokenMap

_GAP = 1.0  # columns left free between the chosen and the rejected tokens
_LABEL = 10  # characters of a token that an axis has room for


def token_map_plate(found: TokenMap | None) -> Plate | None:
    """Rows: observed answer; columns: updating y⁺ then y⁻; margins: sums of either side."""
    if found is None or not found.observed_tokens:
        return None
    return Plate(
        "token-map",
        "Which token pushed which",
        token_map_message(found),
        f"{_step(found)}: the update by “{found.updating_id}” on {_whose(found)} "
        f"{found.observed_kind} answer. {READING}",
        token_map_figure(found),
    )


READING = (
    "A cell: first-order push on the row's token from the column's token. Green raises, brown "
    "lowers; bars add up the chosen and the rejected side apart, diamonds both."
)


def token_map_figure(found: TokenMap) -> go.Figure:
    """The map's cells, and bars for the sums of its columns and rows."""
    force = np.array(found.force, dtype=float)
    split = len(found.chosen_tokens)
    columns = np.arange(force.shape[1]) + _GAP * (np.arange(force.shape[1]) >= split)
    rows = np.arange(force.shape[0])
    figure = go.Figure()
    _add_cells(figure, found, force, columns)
    _add_column_sums(figure, found, force, columns)
    _add_row_sums(figure, found, force)
    height = 250 + max(200, 26 * len(rows))
    ticks = {"tickfont": {"family": MONO, "size": 12}, "showgrid": False, "zeroline": False}
    names = [token_text(t, _LABEL) for t in found.chosen_tokens + found.rejected_tokens]
    layout = base_layout(
        height,
        margin={"l": 90, "r": 24, "t": 60, "b": 110},
        barmode="overlay",
        bargap=0.25,
        xaxis={
            "domain": [0, 0.66],
            "anchor": "y",
            "tickvals": columns,
            "ticktext": names,
            "tickangle": -55,
            "range": [-0.6, float(columns[-1]) + 0.6],
            **ticks,
        },
        yaxis={
            "domain": [0, 0.74],
            "anchor": "x",
            "tickvals": rows,
            "ticktext": [token_text(t, _LABEL) for t in found.observed_tokens],
            "range": [len(rows) - 0.4, -0.6],
            "title": {"text": f"observed {plotly_text(found.observed_kind, 24)} answer"},
            **ticks,
        },
        xaxis2={
            "domain": [0, 0.66],
            "matches": "x",
            "anchor": "y2",
            "showticklabels": False,
            "showgrid": False,
            "ticks": "",
        },
        yaxis2={"domain": [0.79, 1], "anchor": "x2", "title": {"text": "column sums"}, "nticks": 4},
        xaxis3={
            "domain": [0.7, 1],
            "anchor": "y3",
            "title": {"text": "row sums (nats)"},
            "nticks": 5,
            "zerolinecolor": INK,
        },
        yaxis3={
            "matches": "y",
            "domain": [0, 0.74],
            "anchor": "x3",
            "showticklabels": False,
            "showgrid": False,
            "ticks": "",
            "zeroline": False,
        },
        legend={"x": 0.7, "y": 1.0, "xanchor": "left", "yanchor": "bottom", "orientation": "h"},
        coloraxis={
            "colorscale": DIVERGING,
            "cmid": 0,
            "cmin": -_limit(force),
            "cmax": _limit(force),
            "colorbar": {
                "orientation": "h",
                "x": 0.7,
                "xanchor": "left",
                "y": 0.8,
                "yanchor": "bottom",
                "len": 0.3,
                "thickness": 10,
                "nticks": 5,
                "title": {"text": "push on log π (nats)", "side": "top", "font": {"size": 11}},
            },
        },
    )
    layout["annotations"] = _headings(found, columns, split)
    layout["shapes"] = [] if split == len(columns) else [_separator(split)]
    figure.update_layout(**layout)
    return figure


def _step(found: TokenMap) -> str:
    rate = f"learning rate {number(found.learning_rate)}"
    if found.step is None:
        return f"A gradient step of {objective_name(found.stage)}, {rate}"
    return f"{objective_name(found.stage)} step {found.step}, {rate}"


def _whose(found: TokenMap) -> str:
    return "its own" if found.observed_id == found.updating_id else f"“{found.observed_id}”'s"


def _limit(force: np.ndarray) -> float:
    """The colour scale's end: the 99th percentile of |F|, so that one cell cannot whiten the rest.

    Row and column sums are exact whatever the colours show.
    """
    finite = np.abs(force[np.isfinite(force)])
    return float(np.quantile(finite, 0.99)) or 1.0 if finite.size else 1.0


def _add_cells(figure: go.Figure, found: TokenMap, force: np.ndarray, columns: np.ndarray) -> None:
    split = len(found.chosen_tokens)
    for cells, x in ((force[:, :split], columns[:split]), (force[:, split:], columns[split:])):
        if not x.size:
            continue
        side = "y⁺" if x[0] == 0 else "y⁻"
        tokens = found.chosen_tokens if x[0] == 0 else found.rejected_tokens
        hover = [
            [f"{side} “{token_text(c)}” on “{token_text(r)}”" for c in tokens]
            for r in found.observed_tokens
        ]
        figure.add_heatmap(
            z=cells,
            x=x,
            y=np.arange(len(cells)),
            coloraxis="coloraxis",
            xgap=1,
            ygap=1,
            text=hover,
            hovertemplate="%{text}: %{z:+.3g} nats<extra></extra>",
        )


def _add_column_sums(
    figure: go.Figure, found: TokenMap, force: np.ndarray, columns: np.ndarray
) -> None:
    split = len(found.chosen_tokens)
    figure.add_bar(
        x=columns,
        y=np.nansum(force, axis=0),
        xaxis="x2",
        yaxis="y2",
        showlegend=False,
        marker={
            "color": [CHOSEN] * split + [REJECTED] * (len(columns) - split),
            "line": {"width": 0},
        },
        text=[token_text(t) for t in found.chosen_tokens + found.rejected_tokens],
        textposition="none",
        hovertemplate="all pushes from “%{text}”: %{y:+.3g} nats<extra></extra>",
    )


def _add_row_sums(figure: go.Figure, found: TokenMap, force: np.ndarray) -> None:
    split = len(found.chosen_tokens)
    rows = np.arange(len(force))
    names = [token_text(t) for t in found.observed_tokens]
    plus, minus = np.nansum(force[:, :split], axis=1), np.nansum(force[:, split:], axis=1)
    shared = {"y": rows, "xaxis": "x3", "yaxis": "y3", "text": names}
    for values, label, color, offset in (
        (plus, "from y⁺", CHOSEN, -0.38),
        (minus, "from y⁻", REJECTED, 0.0),
    ):
        figure.add_bar(
            x=values,
            orientation="h",
            name=label,
            textposition="none",
            offset=offset,
            width=0.38,
            marker={"color": color, "line": {"width": 0}},
            hovertemplate=f"on “%{{text}}” {label}: %{{x:+.3g}} nats<extra></extra>",
            **shared,
        )
    figure.add_scatter(
        x=plus + minus,
        mode="markers",
        name="both",
        marker={"color": INK, "symbol": "diamond", "size": 8, "line": {"color": PAPER, "width": 1}},
        hovertemplate="on “%{text}” from both: %{x:+.3g} nats<extra></extra>",
        **shared,
    )


def _headings(found: TokenMap, columns: np.ndarray, split: int) -> list[dict]:
    def over(text: str, part: np.ndarray, color: str) -> dict:
        middle = float(part.mean())
        return panel_title(
            text, middle, 1.0, xref="x", xanchor="center", font={"size": 13, "color": color}
        )

    headings = []
    if split:
        headings.append(over("updating y⁺ (pulled up)", columns[:split], CHOSEN))
    if split < len(columns):
        headings.append(over("updating y⁻ (pushed down)", columns[split:], REJECTED))
    return headings


def _separator(split: int) -> dict:
    middle = split - 0.5 + _GAP / 2
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": middle,
        "x1": middle,
        "y0": 0,
        "y1": 1,
        "line": {"color": INK, "width": 1.2},
    }


def token_map_message(found: TokenMap) -> str:
    """What either side of the pair does, and the token that is moved most."""
    force, split = np.array(found.force, dtype=float), len(found.chosen_tokens)
    plus, minus = float(np.nansum(force[:, :split])), float(np.nansum(force[:, split:]))
    rows = np.nansum(force, axis=1)
    most = int(np.argmax(np.abs(rows)))
    answer = f"{_whose(found)} {found.observed_kind} answer"
    text = f"The pair's y⁺ pushes {answer} by {number(plus, sign=True)} nats"
    if split < force.shape[1]:
        text += f", its y⁻ by {number(minus, sign=True)} nats"
    token = found.observed_tokens[most].strip() or "␣"
    return f"{text}; the token “{token}” is moved most ({number(float(rows[most]), sign=True)})."
