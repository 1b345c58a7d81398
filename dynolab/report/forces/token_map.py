"""Figures of token maps: which updating token pushed which observed one; several to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dynolab.report.figure import Figure
from dynolab.report.forces.token_map_plot import token_map_plot
from dynolab.report.ledger.fallen import strongest_tokens
from dynolab.report.page import Words
from dynolab.report.style import INK, MUTED, PAPER, ZERO, number, objective_name, plotly_text
from dynolab.results.study import TokenMap

READING = (
    "A cell: first-order push on the row's token from the column's token. Green raises, brown "
    "lowers. Above the cells are sums of columns, on their right sums of rows: over y⁺, over y⁻ "
    "and over both. Of many tokens those with the largest sums are named."
)

SCALED = (
    "The columns of a side are the tokens' shares of the step, scaled to what it would have lacked "
    "without that side's answer; where the share has the other sign, they stay as they are."
)
"""Of maps of steps that were taken."""

FELL_MOST = (
    "Of answers of at most 128 tokens, the one that fell most. It is what this step did at its own "
    "weights; the ledger’s numbers of the pair differ, as they also count its momentum in later "
    "steps."
)
"""Of the map of a ledger's hardest pull, and how the two differ."""

LINE = 110
"""Characters of a line above one of several maps."""

_CHANGING = {  # layout settings that differ from map to map
    "xaxis": ("tickvals", "ticktext", "range"),
    "yaxis": ("tickvals", "ticktext", "range", "title.text"),
    "coloraxis": ("cmin", "cmax"),
}


def token_map_figure(token_map: TokenMap, about: str = "") -> Figure | None:
    """Rows: observed answer; columns: updating y⁺ then y⁻; margins: sums of each side.

    **Arguments:** `about`: a sentence on the observed answer.
    """
    if not token_map.observed_tokens:
        return None
    step = "A gradient step" if token_map.step is None else f"Step {token_map.step}"
    step += (
        f" of {objective_name(token_map.stage)}, learning rate {number(token_map.learning_rate)}"
    )
    scaled = "" if token_map.step is None else f" {SCALED}"
    return Figure(
        "token-map",
        "Which token pushed which",
        f"{token_map_message(token_map)} {about}".strip(),
        f"{step}: the update by “{token_map.updating_id}” on {_whose(token_map)} "
        f"{token_map.observed_kind} answer. {READING}{scaled}",
        token_map_plot(token_map),
    )


def _whose(token_map: TokenMap) -> str:
    return (
        "its own"
        if token_map.observed_id == token_map.updating_id
        else f"“{token_map.observed_id}”'s"
    )


def token_map_message(token_map: TokenMap) -> str:
    """What each side of the pair does, and which token does most of it."""
    force, split = np.array(token_map.force, dtype=float), len(token_map.chosen_tokens)
    plus, minus = float(np.nansum(force[:, :split])), float(np.nansum(force[:, split:]))
    answer = f"{_whose(token_map)} {token_map.observed_kind} answer"
    text = f"y⁺ of “{token_map.updating_id}” pushes {answer} by {number(plus, sign=True)} nats"
    if split < force.shape[1]:
        text += f", its y⁻ by {number(minus, sign=True)} nats"
    if not np.isfinite(force).any():
        return f"{text}."
    both = token_map.chosen_tokens + token_map.rejected_tokens
    side = slice(0, split) if abs(plus) >= abs(minus) else slice(split, None)
    sums = np.nansum(force, axis=0)
    tokens = list(zip(both[side], sums[side].tolist(), strict=True))
    through = strongest_tokens(tokens, down=sums[side].sum() < 0)
    return f"{text}. The tokens of its {'y⁺' if side.start == 0 else 'y⁻'} that do most: {through}."


def token_map_choice_figure(maps: Sequence[tuple[str, TokenMap]]) -> Figure | None:
    """The maps under their labels (checkpoints); shows the first until another is selected."""
    if not maps:
        return None
    plots = [token_map_plot(token_map) for _, token_map in maps]
    plot = go.Figure(layout=plots[0].layout)
    for place, single in enumerate(plots):
        plot.add_traces([trace.update(visible=place == 0) for trace in single.data])
    owners = [place for place, single in enumerate(plots) for _ in single.data]
    choices = []
    for place, ((label, token_map), single) in enumerate(zip(maps, plots, strict=True)):
        shown = {"visible": [owner == place for owner in owners]}
        answer = f"{token_map.observed_kind} of “{token_map.observed_id}”"
        choices.append(
            {
                "label": plotly_text(f"{label}: “{token_map.updating_id}” on {answer}", 70),
                "method": "update",
                "args": [shown, _changes(single, token_map)],
            }
        )
    plot.update_layout(
        height=max(single.layout.height for single in plots) + 70,
        margin={"l": 90, "r": 24, "t": 130, "b": 110},
        title=_title(maps[0][1]),
        updatemenus=[
            {
                "buttons": choices,
                "type": "dropdown",
                "x": 0,
                "xanchor": "left",
                "y": 1,
                "yanchor": "bottom",
                "pad": {"b": 62},
                "bgcolor": PAPER,
                "bordercolor": ZERO,
                "font": {"size": 13, "color": INK},
                "showactive": False,
            }
        ],
    )
    first, *_ = maps
    pair = first[1].updating_id, first[1].observed_id, first[1].observed_kind
    sums = {
        label: float(np.nansum(token_map.force))
        for label, token_map in maps
        if (token_map.updating_id, token_map.observed_id, token_map.observed_kind) == pair
    }
    words = Words("forces.html", maps=maps, first=first[1], sums=sums, reading=READING)
    return words.figure("token-maps", plot)


def _title(token_map: TokenMap) -> dict[str, Any]:
    return {
        # Only between words: a long one may hold escaped characters.
        "text": "<br>".join(
            wrap(plotly_text(token_map_message(token_map), 240), LINE, break_long_words=False)
        ),
        "x": 0,
        "xref": "paper",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "pad": {"b": 36},
        "font": {"size": 13, "color": MUTED},
    }


def _changes(plot: go.Figure, token_map: TokenMap) -> dict[str, Any]:
    layout = plot.layout
    return {
        **{
            f"{axis}.{name}": _plain(layout[axis][tuple(name.split("."))])
            for axis, names in _CHANGING.items()
            for name in names
        },
        "annotations": [note.to_plotly_json() for note in layout.annotations],
        "shapes": [shape.to_plotly_json() for shape in layout.shapes],
        "title.text": _title(token_map)["text"],
    }


def _plain(value: Any) -> Any:
    """Turns arrays into lists: plotly sends arrays as bytes, which its menus do not read."""
    return value.tolist() if hasattr(value, "tolist") else value
