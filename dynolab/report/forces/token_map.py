"""The token force map: which updating token pushed which observed token, and by how much."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy import ndarray
from plotly.subplots import make_subplots

from dynolab.report.figure import CELLS, Figure, base_layout, panel_title
from dynolab.report.style import CHOSEN, DIVERGING, INK, MONO, PAPER, REJECTED, objective_name
from dynolab.report.text import number, plotly_text, token_text
from dynolab.results.study import TokenMap

_GAP = 1.0  # columns left free between the chosen and the rejected tokens
_LABEL = 10  # characters of a token on an axis
_BARS = {"showticklabels": False, "showgrid": False, "ticks": ""}
READING = (
    "A cell: first-order push on the row's token from the column's token. Green raises, brown "
    "lowers; bars sum the chosen and the rejected side separately, diamonds both. Of many columns "
    "those with the largest sums are named."
)

_NAMED_COLUMNS = 40  # that fit side by side


def token_map_figure(token_map: TokenMap, about: str = "") -> Figure | None:
    """Rows: observed answer; columns: updating y⁺ then y⁻; margins: sums of each side.

    **Arguments:** `about`: a sentence on the observed answer.
    """
    if not token_map.observed_tokens:
        return None
    return Figure(
        "token-map",
        "Which token pushed which",
        f"{token_map_message(token_map)} {about}".strip(),
        f"{_step(token_map)}: the update by “{token_map.updating_id}” on {_whose(token_map)} "
        f"{token_map.observed_kind} answer. {READING}",
        token_map_plot(token_map),
    )


def token_map_plot(token_map: TokenMap) -> go.Figure:
    """The map's cells, and bars for the sums of its columns and rows."""
    force = np.array(token_map.force, dtype=float)
    split = len(token_map.chosen_tokens)
    columns = np.arange(force.shape[1]) + _GAP * (np.arange(force.shape[1]) >= split)
    rows = np.arange(force.shape[0])
    plot = make_subplots(
        rows=2,
        cols=2,
        start_cell="bottom-left",
        specs=[[{}, {}], [{}, None]],
        column_widths=[0.66, 0.3],
        row_heights=[0.74, 0.21],
        horizontal_spacing=0.04,
        vertical_spacing=0.05,
        shared_xaxes=True,
        shared_yaxes=True,
    )
    _add_cells(plot, token_map, force, columns)
    _add_column_sums(plot, token_map, force, columns)
    _add_row_sums(plot, token_map, force)
    # plotly lays labels out for seconds where they must not leave the figure.
    ticks = {"tickfont": {"family": MONO, "size": 12}, "ticklabeloverflow": "allow", **CELLS}
    tokens = token_map.chosen_tokens + token_map.rejected_tokens
    named = _named_columns(force.sum(axis=0))
    plot.update_xaxes(
        tickvals=columns[named],
        ticktext=[token_text(tokens[place], _LABEL) for place in named],
        tickangle=-55,
        range=[-0.6, float(columns[-1]) + 0.6],
        row=1,
        col=1,
        **ticks,
    )
    plot.update_yaxes(
        tickvals=rows,
        ticktext=[token_text(t, _LABEL) for t in token_map.observed_tokens],
        range=[len(rows) - 0.4, -0.6],
        title_text=f"observed {plotly_text(token_map.observed_kind, 24)} answer",
        row=1,
        col=1,
        **ticks,
    )
    plot.update_xaxes(row=2, col=1, **_BARS)
    plot.update_yaxes(title_text="column sums", nticks=4, row=2, col=1)
    plot.update_xaxes(title_text="row sums (nats)", nticks=5, zerolinecolor=INK, row=1, col=2)
    plot.update_yaxes(zeroline=False, row=1, col=2, **_BARS)
    plot.update_layout(
        base_layout(
            250 + max(200, 26 * len(rows)),
            margin={"l": 90, "r": 24, "t": 60, "b": 110},
            barmode="overlay",
            bargap=0.25,
            legend={"x": 0.7, "y": 1.0, "xanchor": "left", "yanchor": "bottom", "orientation": "h"},
            coloraxis=_colors(force),
            annotations=_headings(columns, split),
            shapes=[] if split == len(columns) else [_separator(split)],
        )
    )
    return plot


def _named_columns(sums: Float[ndarray, " columns"]) -> list[int]:
    """Places of the columns that are named: the largest sums, with room between them."""
    apart = -(-len(sums) // _NAMED_COLUMNS)
    named: list[int] = []
    for place in np.argsort(-np.abs(sums)).tolist():
        if all(abs(place - other) >= apart for other in named):
            named.append(place)
    return sorted(named)


def _step(token_map: TokenMap) -> str:
    rate = f"learning rate {number(token_map.learning_rate)}"
    if token_map.step is None:
        return f"A gradient step of {objective_name(token_map.stage)}, {rate}"
    return f"{objective_name(token_map.stage)} step {token_map.step}, {rate}"


def _whose(token_map: TokenMap) -> str:
    return (
        "its own"
        if token_map.observed_id == token_map.updating_id
        else f"“{token_map.observed_id}”'s"
    )


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


def _add_cells(
    plot: go.Figure, token_map: TokenMap, force: np.ndarray, columns: np.ndarray
) -> None:
    split = len(token_map.chosen_tokens)
    for side, tokens, own in (
        ("y⁺", token_map.chosen_tokens, slice(0, split)),
        ("y⁻", token_map.rejected_tokens, slice(split, None)),
    ):
        if tokens:
            plot.add_heatmap(
                z=force[:, own],
                x=columns[own],
                y=np.arange(len(force)),
                coloraxis="coloraxis",
                xgap=1,
                ygap=1,
                text=[
                    [f"{side} “{token_text(token)}” on “{token_text(row)}”" for token in tokens]
                    for row in token_map.observed_tokens
                ],
                hovertemplate="%{text}: %{z:+.3g} nats<extra></extra>",
                row=1,
                col=1,
            )


def _add_column_sums(
    plot: go.Figure, token_map: TokenMap, force: np.ndarray, columns: np.ndarray
) -> None:
    split = len(token_map.chosen_tokens)
    plot.add_bar(
        x=columns,
        y=np.nansum(force, axis=0),
        showlegend=False,
        marker={
            "color": [CHOSEN] * split + [REJECTED] * (len(columns) - split),
            "line": {"width": 0},
        },
        text=[token_text(t) for t in token_map.chosen_tokens + token_map.rejected_tokens],
        textposition="none",
        hovertemplate="all pushes from “%{text}”: %{y:+.3g} nats<extra></extra>",
        row=2,
        col=1,
    )


def _add_row_sums(plot: go.Figure, token_map: TokenMap, force: np.ndarray) -> None:
    split = len(token_map.chosen_tokens)
    plus, minus = np.nansum(force[:, :split], axis=1), np.nansum(force[:, split:], axis=1)
    shared = {
        "y": np.arange(len(force)),
        "text": [token_text(t) for t in token_map.observed_tokens],
        "row": 1,
        "col": 2,
    }
    for values, label, color, offset in (
        (plus, "from y⁺", CHOSEN, -0.38),
        (minus, "from y⁻", REJECTED, 0.0),
    ):
        plot.add_bar(
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
    plot.add_scatter(
        x=plus + minus,
        mode="markers",
        name="both",
        marker={"color": INK, "symbol": "diamond", "size": 8, "line": {"color": PAPER, "width": 1}},
        hovertemplate="on “%{text}” from both: %{x:+.3g} nats<extra></extra>",
        **shared,
    )


def _headings(columns: np.ndarray, split: int) -> list[dict[str, Any]]:
    """Headings over the middle of the chosen and of the rejected side."""
    sides = (
        ("updating y⁺ (pulled up)", columns[:split], CHOSEN),
        ("updating y⁻ (pushed down)", columns[split:], REJECTED),
    )
    return [
        panel_title(
            title,
            float(own.mean()),
            1.0,
            xref="x",
            xanchor="center",
            font={"size": 13, "color": color},
        )
        for title, own, color in sides
        if own.size
    ]


def _separator(split: int) -> dict[str, Any]:
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


def token_map_message(token_map: TokenMap) -> str:
    """What each side of the pair does, and which token moves most."""
    force, split = np.array(token_map.force, dtype=float), len(token_map.chosen_tokens)
    plus, minus = float(np.nansum(force[:, :split])), float(np.nansum(force[:, split:]))
    answer = f"{_whose(token_map)} {token_map.observed_kind} answer"
    text = f"y⁺ of “{token_map.updating_id}” pushes {answer} by {number(plus, sign=True)} nats"
    if split < force.shape[1]:
        text += f", its y⁻ by {number(minus, sign=True)} nats"
    if not np.isfinite(force).any():
        return f"{text}."
    row, column = np.unravel_index(np.nanargmax(np.abs(force)), force.shape)
    pushed = _shown(token_map.observed_tokens[row])
    pusher = _shown((token_map.chosen_tokens + token_map.rejected_tokens)[column])
    return (
        f"{text}; hardest, “{pusher}” of its {'y⁺' if column < split else 'y⁻'} pushes “{pushed}” "
        f"({number(float(force[row, column]), sign=True)})."
    )


def _shown(token: str) -> str:
    return token.strip() or "␣"
