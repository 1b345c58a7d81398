"""Draws the token force map: its cells, and bars for the sums of its columns and rows.

It is made of dictionaries, which plotly checks once: a map is drawn at every click of the explorer,
and adding one part after another takes four times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy import ndarray

from dynolab.report.figure import CELLS, base_layout, panel_title
from dynolab.report.style import (
    CHOSEN,
    DIVERGING,
    INK,
    MONO,
    PAPER,
    REJECTED,
    plotly_text,
    token_text,
)
from dynolab.results.study import TokenMap

_GAP = 1.0  # columns left free between the chosen and the rejected tokens
_LABEL = 10  # characters of a token on an axis
_MOST_NAMED = 40  # tokens of either answer that fit side by side
_ROW = 26  # pixels
_MOST_CELLS = 40_000  # that say their tokens
_MOST_BARS = 200  # that can be told apart
_LEFT, _RIGHT = (0.0, 0.66), (0.7, 1.0)
_BELOW, _ABOVE = (0.0, 0.74), (0.79, 1.0)
_COLUMN_SUMS = {"xaxis": "x2", "yaxis": "y2"}  # above the cells
_ROW_SUMS = {"xaxis": "x3", "yaxis": "y3"}  # on their right
_BARS = {"showticklabels": False, "showgrid": False, "ticks": ""}
_HALF = {"orientation": "h", "width": 0.38}  # of a row, for each side
_DIAMONDS = {
    "mode": "markers",
    "marker": {
        "color": INK,
        "symbol": "diamond",
        "size": 8,
        "line": {"color": PAPER, "width": 1},
    },
}
_STEPS = {"mode": "lines", "line": {"color": INK, "width": 1, "shape": "vhv"}}
# plotly lays labels out for seconds where they must not leave the figure.
_TOKENS = {"tickfont": {"family": MONO, "size": 12}, "ticklabeloverflow": "allow", **CELLS}


def token_map_plot(token_map: TokenMap) -> go.Figure:
    """The map's cells, and bars for the sums of its columns and rows."""
    force = np.array(token_map.force, dtype=float)
    split = len(token_map.chosen_tokens)
    columns = np.arange(force.shape[1]) + _GAP * (np.arange(force.shape[1]) >= split)
    traces = [
        *_cells(token_map, force, columns),
        *_column_sums(token_map, force, columns),
        *_row_sums(token_map, force),
    ]
    middle = split - 0.5 + _GAP / 2
    separator = {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": middle,
        "x1": middle,
        "y0": 0,
        "y1": 1,
        "line": {"color": INK, "width": 1.2},
    }
    layout = base_layout(
        250 + max(200, _ROW * min(len(force), _MOST_NAMED)),
        **_axes(token_map, force, columns),
        margin={"l": 90, "r": 24, "t": 60, "b": 110},
        barmode="overlay",
        bargap=0.25,
        legend={"x": 0.7, "y": 1.0, "xanchor": "left", "yanchor": "bottom", "orientation": "h"},
        coloraxis=_colors(force),
        annotations=_headings(columns, split),
        shapes=[] if split == len(columns) else [separator],
    )
    return go.Figure({"data": traces, "layout": layout})


def _axes(token_map: TokenMap, force: np.ndarray, columns: np.ndarray) -> dict[str, Any]:
    """Axes of the cells, then of the column sums, then of the row sums."""
    tokens = token_map.chosen_tokens + token_map.rejected_tokens
    named, observed = _named(force.sum(axis=0)), _named(force.sum(axis=1))
    return {
        "xaxis": {
            "anchor": "y",
            "domain": _LEFT,
            "tickvals": columns[named],
            "ticktext": [token_text(tokens[place], _LABEL) for place in named],
            "tickangle": -55,
            "range": [-0.6, float(columns[-1]) + 0.6],
            **_TOKENS,
        },
        "yaxis": {
            "anchor": "x",
            "domain": _BELOW,
            "tickvals": np.array(observed),
            "ticktext": [
                token_text(token_map.observed_tokens[place], _LABEL) for place in observed
            ],
            "range": [len(force) - 0.4, -0.6],
            "title": {"text": f"observed {plotly_text(token_map.observed_kind, 24)} answer"},
            **_TOKENS,
        },
        "xaxis2": {"anchor": "y2", "domain": _LEFT, "matches": "x", **_BARS},
        "yaxis2": {
            "anchor": "x2",
            "domain": _ABOVE,
            "title": {"text": "column sums"},
            "nticks": 4,
        },
        "xaxis3": {
            "anchor": "y3",
            "domain": _RIGHT,
            "title": {"text": "row sums (nats)"},
            "nticks": 5,
            "zerolinecolor": INK,
        },
        "yaxis3": {"anchor": "x3", "domain": _BELOW, "matches": "y", "zeroline": False, **_BARS},
    }


def _named(sums: Float[ndarray, " tokens"]) -> list[int]:
    """Places of the tokens that are named: the largest sums, with room between them."""
    apart = -(-len(sums) // _MOST_NAMED)
    places: list[int] = []
    for place in np.argsort(-np.abs(sums)).tolist():
        if all(abs(place - other) >= apart for other in places):
            places.append(place)
    return sorted(places)


def _colors(force: np.ndarray) -> dict[str, Any]:
    """A colour scale up to the 99th percentile of |F|, so that one cell cannot fade the rest.

    Row and column sums are not clipped.
    """
    finite = np.abs(force[np.isfinite(force)])
    end = (float(np.quantile(finite, 0.99)) if finite.size else 0.0) or 1.0
    return {
        "colorscale": DIVERGING,
        "cmid": 0,
        "cmin": -end,
        "cmax": end,
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
    }


def _cells(token_map: TokenMap, force: np.ndarray, columns: np.ndarray) -> list[dict[str, Any]]:
    gap = 0 if force.size > _MOST_CELLS else 1  # pixels, of which so many cells have two or three
    return [
        {
            "type": "heatmap",
            "z": force[:, places].astype(np.float32),
            "x": columns[places],
            "y": np.arange(len(force)),
            "coloraxis": "coloraxis",
            "xgap": gap,
            "ygap": gap,
            **_hover(side, tokens, token_map.observed_tokens, force.size),
        }
        for side, tokens, places, _ in _sides(token_map)
    ]


def _sides(token_map: TokenMap) -> list[tuple[str, Sequence[str], slice, str]]:
    """Name, tokens, columns and colour of each answer that pushes."""
    chosen, rejected = token_map.chosen_tokens, token_map.rejected_tokens
    sides = (
        ("y⁺", chosen, slice(0, len(chosen)), CHOSEN),
        ("y⁻", rejected, slice(len(chosen), None), REJECTED),
    )
    return [side for side in sides if side[1]]


def _hover(side: str, tokens: Sequence[str], observed: Sequence[str], cells: int) -> dict[str, Any]:
    """What a cell says when it is pointed at: its tokens, but for a map of very many cells.

    There the bars name the tokens: texts of all cells would be most of the page.
    """
    if cells > _MOST_CELLS:
        return {"hovertemplate": f"{side}: %{{z:+.3g}} nats<extra></extra>"}
    names = [
        [f"{side} “{token_text(token)}” on “{token_text(row)}”" for token in tokens]
        for row in observed
    ]
    return {"text": names, "hovertemplate": "%{text}: %{z:+.3g} nats<extra></extra>"}


def _column_sums(
    token_map: TokenMap, force: np.ndarray, columns: np.ndarray
) -> list[dict[str, Any]]:
    many = len(columns) > _MOST_BARS
    return [
        {
            "x": columns[places],
            "y": np.nansum(force[:, places], axis=0),
            "showlegend": False,
            "text": [token_text(token) for token in tokens],
            "hovertemplate": "all pushes from “%{text}”: %{y:+.3g} nats<extra></extra>",
            **(_area(color, "y") if many else _bar(color)),
            **_COLUMN_SUMS,
        }
        for _, tokens, places, color in _sides(token_map)
    ]


def _row_sums(token_map: TokenMap, force: np.ndarray) -> list[dict[str, Any]]:
    split = len(token_map.chosen_tokens)
    plus, minus = np.nansum(force[:, :split], axis=1), np.nansum(force[:, split:], axis=1)
    many = len(force) > _MOST_BARS
    shared = {
        "y": np.arange(len(force)),
        "text": [token_text(t) for t in token_map.observed_tokens],
        **_ROW_SUMS,
    }
    sides = [
        {
            "x": values,
            "name": label,
            "hovertemplate": f"on “%{{text}}” {label}: %{{x:+.3g}} nats<extra></extra>",
            **(_area(color, "x") if many else {**_bar(color), **_HALF, "offset": offset}),
            **shared,
        }
        for values, label, color, offset in (
            (plus, "from y⁺", CHOSEN, -0.38),
            (minus, "from y⁻", REJECTED, 0.0),
        )
    ]
    both = {
        "type": "scatter",
        "x": plus + minus,
        "name": "both",
        "hovertemplate": "on “%{text}” from both: %{x:+.3g} nats<extra></extra>",
        **(_STEPS if many else _DIAMONDS),
        **shared,
    }
    return [*sides, both]


def _bar(color: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "textposition": "none",
        "marker": {"color": color, "line": {"width": 0}},
    }


def _area(color: str, along: str) -> dict[str, Any]:
    """Steps filled to zero, one path where bars would be hundreds of a pixel or two."""
    return {
        "type": "scatter",
        "mode": "lines",
        "line": {"color": color, "width": 0.5, "shape": "hvh" if along == "y" else "vhv"},
        "fill": f"tozero{along}",
    }


def _headings(columns: np.ndarray, split: int) -> list[dict[str, Any]]:
    """Headings over the middle of the chosen and of the rejected side."""
    sides = (
        ("updating y⁺ (pulled up)", columns[:split], CHOSEN),
        ("updating y⁻ (pushed down)", columns[split:], REJECTED),
    )
    return [
        panel_title(
            title,
            float(places.mean()),
            1.0,
            xref="x",
            xanchor="center",
            font={"size": 13, "color": color},
        )
        for title, places, color in sides
        if places.size
    ]
