"""Through which parameters chosen and rejected answers moved a functional."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dynolab.report.figure import Figure, base_layout
from dynolab.report.inputs.ledger import FunctionalAccount, Ledger
from dynolab.report.ledger.waterfall import functional_name, menu
from dynolab.report.style import DOWN, UP
from dynolab.report.text import number, plotly_text


def blocks_figure(ledger: Ledger) -> Figure | None:
    """Two bars a block; a menu chooses the functional."""
    accounts = [account for account in ledger.accounts if account.row.name in ledger.blocks]
    if not accounts:
        return None
    plot = go.Figure(layout=base_layout(380, barmode="relative"))
    first = _bars(ledger, accounts[0])
    for side, (name, colour) in enumerate((("chosen answers", UP), ("rejected answers", DOWN))):
        plot.add_bar(
            name=name,
            x=first["x"][side],
            y=first["y"][side],
            marker_color=colour,
            hovertemplate="%{x}: %{y:+.4g} nats<extra>%{fullData.name}</extra>",
        )
    plot.update_layout(
        updatemenus=[menu([(functional_name(own), [_bars(ledger, own)]) for own in accounts])]
    )
    plot.update_yaxes(title_text="nats")
    return Figure(
        "ledger-blocks",
        "Through which weights",
        _message(ledger, accounts[0]),
        "The sums of the account’s lines, split by the parameters that carried them: a line is a "
        "product of two gradients, which falls into the model’s layers and what stands before and "
        "after them. Chosen answers mostly push up, rejected ones down.",
        plot,
    )


def _bars(ledger: Ledger, account: FunctionalAccount) -> dict[str, list[Any]]:
    blocks = ledger.blocks[account.row.name]
    names = [plotly_text(name, 24) for name in blocks]
    sides = zip(*blocks.values(), strict=True)
    return {"x": [names, names], "y": [[round(value, 5) for value in side] for side in sides]}


def _message(ledger: Ledger, account: FunctionalAccount) -> str:
    blocks = ledger.blocks[account.row.name]
    block, (up, down) = max(blocks.items(), key=lambda item: abs(item[1][0]) + abs(item[1][1]))
    total = sum(abs(own) for sides in blocks.values() for own in sides)
    share = 100 * (abs(up) + abs(down)) / total if total else 0.0
    return (
        f"On {functional_name(account)}, {plotly_text(block, 24)} carried most: "
        f"{number(up, sign=True)} from chosen and {number(down, sign=True)} from rejected answers, "
        f"{share:.0f} % of all pushes either way."
    )
