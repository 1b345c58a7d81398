"""Which example pushed at which step."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from dynolab.report.figure import CELLS, Figure, base_layout
from dynolab.report.inputs.ledger import FunctionalAccount, Ledger
from dynolab.report.ledger.waterfall import functional_name, menu
from dynolab.report.style import DIVERGING, MONO
from dynolab.report.text import excerpt, number, plotly_text

STRONGEST = 20
"""Examples that are shown in each direction."""

_PROMPT = 60  # characters of a prompt


def ledger_map_figure(ledger: Ledger) -> Figure:
    """The strongest examples by steps; a menu chooses the functional."""
    trained = [account for account in ledger.accounts if account.row.split == "train"]
    shown = trained or list(ledger.accounts)
    plot = go.Figure(
        layout=base_layout(
            620,
            margin={"l": 120, "r": 24, "t": 64, "b": 52},
            coloraxis={
                "colorscale": DIVERGING,
                "cmid": 0,
                "colorbar": {"title": {"text": "nats", "side": "top"}, "thickness": 12},
            },
        )
    )
    plot.add_heatmap(
        coloraxis="coloraxis",
        hovertemplate="%{y} at step %{x}: %{z:+.3g} nats<extra></extra>",
        hoverongaps=False,
        **_cells(ledger, shown[0]),
    )
    choices = [
        (functional_name(own), [{name: [values] for name, values in _cells(ledger, own).items()}])
        for own in shown
    ]
    plot.update_layout(updatemenus=[menu(choices)])
    ticks = {"tickfont": {"family": MONO, "size": 10}, "type": "category", **CELLS}
    plot.update_yaxes(autorange="reversed", **ticks)
    plot.update_xaxes(title_text="step", **CELLS)
    return Figure(
        "ledger-map",
        "Which example pushed when",
        _message(ledger, shown[0]),
        f"A cell: what the row's example did at the column's step to the chosen account, then and "
        f"later through momentum. Shown are the {STRONGEST} examples that pushed up hardest "
        "and, below, as many that pushed down. Empty: the example was not in "
        "that step's batch.",
        plot,
    )


def _cells(ledger: Ledger, account: FunctionalAccount) -> dict[str, list[Any]]:
    order = np.argsort(-ledger.by_example(account))
    places = order if len(order) <= 2 * STRONGEST else np.r_[order[:STRONGEST], order[-STRONGEST:]]
    cells = ledger.by_step(account, places.tolist())
    return {
        "z": [
            [None if np.isnan(cell) else float(f"{cell:.3g}") for cell in line] for line in cells
        ],
        "y": [plotly_text(ledger.examples[place], 16) for place in places],
        "x": ledger.steps,
    }


def _message(ledger: Ledger, account: FunctionalAccount) -> str:
    totals = ledger.by_example(account)
    up, down = ledger.examples[int(totals.argmax())], ledger.examples[int(totals.argmin())]
    return (
        f"On {functional_name(account)}, {_named(ledger, up)} pushed up hardest, "
        f"{number(float(totals.max()), sign=True)} nats over {ledger.span}, and "
        f"{_named(ledger, down)} pushed down hardest, {number(float(totals.min()), sign=True)}."
    )


def _named(ledger: Ledger, example: str) -> str:
    """An example by its id, and the end of its prompt where that is known."""
    row = ledger.rows.get(example)
    return f"“{example}” (“{excerpt(row.prompt, _PROMPT, end=True)}”)" if row else f"“{example}”"
