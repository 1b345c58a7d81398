"""Several token maps in one figure, of which the reader chooses one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from dynolab.report.panels.token_map import READING, token_map_figure, token_map_message
from dynolab.report.style import INK, MUTED, PAPER, ZERO, Plate, join, number, plotly_text
from dynolab.results.study import TokenMap

_CHANGING = {  # what of the layout belongs to one map
    "xaxis": ("tickvals", "ticktext", "range"),
    "yaxis": ("tickvals", "ticktext", "range", "title.text"),
    "coloraxis": ("cmin", "cmax"),
}


def token_map_choice_plate(maps: Sequence[tuple[str, TokenMap]]) -> Plate | None:
    """The maps under labels of theirs (checkpoints); the first is shown until another is chosen."""
    if not maps:
        return None
    single = [token_map_figure(found) for _, found in maps]
    figure = go.Figure()
    owner = []
    for at, one in enumerate(single):
        for trace in one.data:
            trace.visible = at == 0
            figure.add_trace(trace)
            owner.append(at)
    figure.update_layout(single[0].layout)
    tallest = max(one.layout.height for one in single)
    choices = []
    for at, ((label, found), one) in enumerate(zip(maps, single, strict=True)):
        shown = {"visible": [of == at for of in owner]}
        text = f"{label}: “{found.updating_id}” on {found.observed_kind} of “{found.observed_id}”"
        choices.append(
            {
                "label": plotly_text(text, 70),
                "method": "update",
                "args": [shown, _changes(one, found)],
            }
        )
    figure.update_layout(
        height=tallest + 70,
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
    return Plate(
        "token-maps",
        "Which token pushes which",
        _message(maps),
        f"Choose a checkpoint, an updating pair and an observed answer above. {READING}",
        figure,
    )


def _message(maps: Sequence[tuple[str, TokenMap]]) -> str:
    """The first map's sum at every checkpoint that has this map."""
    first = maps[0][1]
    sums = [
        f"{number(sum(map(sum, found.force)), 2, sign=True)} at {label}"
        for label, found in maps
        if _question(found) == _question(first)
    ]
    return (
        f"All tokens of the pair “{first.updating_id}” push the {first.observed_kind} answer of "
        f"“{first.observed_id}” by {join(sums)} nats; {len(maps)} maps show from which token to "
        "which."
    )


def _question(found: TokenMap) -> tuple[str, str, str]:
    return found.updating_id, found.observed_id, found.observed_kind


def _title(found: TokenMap) -> dict[str, Any]:
    return {
        "text": plotly_text(token_map_message(found), 240),
        "x": 0,
        "xref": "paper",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "pad": {"b": 36},
        "font": {"size": 13, "color": MUTED},
    }


def _changes(one: go.Figure, found: TokenMap) -> dict[str, Any]:
    layout = one.layout
    changes: dict[str, Any] = {
        f"{axis}.{name}": _plain(layout[axis][tuple(name.split("."))])
        for axis, names in _CHANGING.items()
        for name in names
    }
    changes["annotations"] = [note.to_plotly_json() for note in layout.annotations]
    changes["shapes"] = [shape.to_plotly_json() for shape in layout.shapes]
    changes["title.text"] = _title(found)["text"]
    return changes


def _plain(value: Any) -> Any:
    """Lists in the place of arrays, which plotly sends as bytes that its menus do not read."""
    return value.tolist() if hasattr(value, "tolist") else value
