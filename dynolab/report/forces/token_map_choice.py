"""Several token maps in one figure; the reader selects one."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from dynolab.report.figure import Figure
from dynolab.report.forces.token_map import READING, token_map_message
from dynolab.report.forces.token_map_plot import token_map_plot
from dynolab.report.style import INK, MUTED, PAPER, ZERO
from dynolab.report.text import join, number, plotly_text
from dynolab.results.study import TokenMap

LINE = 110
"""Characters of a line above the map."""

_CHANGING = {  # layout settings that differ from map to map
    "xaxis": ("tickvals", "ticktext", "range"),
    "yaxis": ("tickvals", "ticktext", "range", "title.text"),
    "coloraxis": ("cmin", "cmax"),
}


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
    return Figure(
        "token-maps",
        "Which token pushes which",
        _message(maps),
        f"Choose a checkpoint, an updating pair and an observed answer above. {READING}",
        plot,
    )


def _message(maps: Sequence[tuple[str, TokenMap]]) -> str:
    """The first map's sum at every checkpoint that has this map."""
    first = maps[0][1]
    sums = [
        f"{number(sum(map(sum, token_map.force)), 2, sign=True)} nats ({label})"
        for label, token_map in maps
        if _pair_and_answer(token_map) == _pair_and_answer(first)
    ]
    return (
        f"All tokens of the pair “{first.updating_id}” push the {first.observed_kind} answer of "
        f"“{first.observed_id}” by {join(sums)}; {len(maps)} maps show which token pushes "
        "which."
    )


def _pair_and_answer(token_map: TokenMap) -> tuple[str, str, str]:
    return token_map.updating_id, token_map.observed_id, token_map.observed_kind


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
    changes: dict[str, Any] = {
        f"{axis}.{name}": _plain(layout[axis][tuple(name.split("."))])
        for axis, names in _CHANGING.items()
        for name in names
    }
    changes["annotations"] = [note.to_plotly_json() for note in layout.annotations]
    changes["shapes"] = [shape.to_plotly_json() for shape in layout.shapes]
    changes["title.text"] = _title(token_map)["text"]
    return changes


def _plain(value: Any) -> Any:
    """Turns arrays into lists: plotly sends arrays as bytes, which its menus do not read."""
    return value.tolist() if hasattr(value, "tolist") else value
