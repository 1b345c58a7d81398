"""Two figures of a ledger: a heat map of examples by steps, and bars of parameter blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from dynolab.report.figure import CELLS, Figure, base_layout, menu
from dynolab.report.ledger.waterfall import functional_name
from dynolab.report.page import Words
from dynolab.report.style import CHOSEN, DIVERGING, MONO, REJECTED
from dynolab.report.text import plotly_text
from dynolab.results.ledger import FunctionalAccount, LedgerReader

_EACH_WAY = 20  # examples that are shown in each direction


def ledger_map_figure(ledger: LedgerReader) -> Figure:
    """The strongest examples by steps; a menu chooses the functional."""
    shown = [own for own in ledger.accounts if own.row.split == "train"] or list(ledger.accounts)
    colorbar = {"title": {"text": "nats", "side": "top"}, "thickness": 12}
    plot = go.Figure(
        layout=base_layout(
            620,
            margin={"l": 120, "r": 24, "t": 64, "b": 52},
            coloraxis={"colorscale": DIVERGING, "cmid": 0, "colorbar": colorbar},
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
    return Words("ledger.html", ledger=ledger, each_way=_EACH_WAY).figure("ledger-map", plot)


def _cells(ledger: LedgerReader, account: FunctionalAccount) -> dict[str, list[Any]]:
    order = np.argsort(-ledger.by_example(account.lines))
    places = order if len(order) <= 2 * _EACH_WAY else np.r_[order[:_EACH_WAY], order[-_EACH_WAY:]]
    cells = ledger.by_step(account.lines, places.tolist())
    return {
        "z": [[None if np.isnan(c) else float(f"{c:.3g}") for c in line] for line in cells],
        "y": [plotly_text(ledger.examples[place], 16) for place in places],
        "x": ledger.steps,
    }


def blocks_figure(ledger: LedgerReader) -> Figure | None:
    """Two bars for every block of parameters; a menu chooses the functional."""
    accounts = [account for account in ledger.accounts if account.row.name in ledger.blocks]
    if not accounts:
        return None
    plot = go.Figure(layout=base_layout(380, barmode="relative"))
    first = _bars(ledger, accounts[0])
    for side, (name, color) in enumerate(
        (("chosen answers", CHOSEN), ("rejected answers", REJECTED))
    ):
        plot.add_bar(
            name=name,
            x=first["x"][side],
            y=first["y"][side],
            marker_color=color,
            hovertemplate="%{x}: %{y:+.4g} nats<extra>%{fullData.name}</extra>",
        )
    choices = [(functional_name(own), [_bars(ledger, own)]) for own in accounts]
    plot.update_layout(updatemenus=[menu(choices)])
    plot.update_yaxes(title_text="nats")
    return Words("ledger.html", ledger=ledger).figure("ledger-blocks", plot)


def _bars(ledger: LedgerReader, account: FunctionalAccount) -> dict[str, list[Any]]:
    blocks = ledger.blocks[account.row.name]
    names = [plotly_text(name, 24) for name in blocks]
    sides = zip(*blocks.values(), strict=True)
    return {"x": [names, names], "y": [[round(value, 5) for value in side] for side in sides]}
