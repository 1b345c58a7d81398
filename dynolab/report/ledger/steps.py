"""At which steps an answer that fell was moved."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from numpy import ndarray

from dynolab.report.figure import LEGEND_ABOVE, Figure, base_layout
from dynolab.report.inputs.ledger import FunctionalAccount, Ledger
from dynolab.report.ledger.fallen import fallen_accounts
from dynolab.report.ledger.waterfall import functional_name, menu
from dynolab.report.style import DOWN, UP
from dynolab.report.text import excerpt, number


def step_figure(ledger: Ledger) -> Figure | None:
    """Two bars a step; a menu chooses the answer. None without answers of their own account."""
    answers = fallen_accounts(ledger)
    if not answers:
        return None
    plot = go.Figure(
        layout=base_layout(
            360, barmode="relative", legend=LEGEND_ABOVE | {"x": 0, "xanchor": "left"}
        )
    )
    for side, color, values in zip(
        ("chosen", "rejected"), (UP, DOWN), _bars(ledger, answers[0]), strict=True
    ):
        plot.add_bar(
            name=f"{side} answers",
            x=ledger.steps,
            y=values,
            marker_color=color,
            hovertemplate="step %{x}: %{y:+.3g} nats<extra>%{fullData.name}</extra>",
        )
    choices = [(functional_name(own), [{"y": _bars(ledger, own)}]) for own in answers]
    plot.update_layout(updatemenus=[menu(choices)])
    plot.update_xaxes(title_text="step")
    plot.update_yaxes(title_text="nats")
    return Figure(
        "ledger-steps",
        "At which steps these answers were moved",
        _message(ledger, answers[0]),
        "A bar: what one step’s chosen or rejected answers did to the chosen account, then and "
        "later through momentum. The menu holds the answers that fell most.",
        plot,
    )


def _sides(ledger: Ledger, account: FunctionalAccount) -> ndarray:
    return np.array([ledger.side_steps(account, side) for side in ("chosen", "rejected")])


def _bars(ledger: Ledger, account: FunctionalAccount) -> list[list[float]]:
    return [[float(f"{value:.3g}") for value in side] for side in _sides(ledger, account)]


def _message(ledger: Ledger, account: FunctionalAccount) -> str:
    sides = _sides(ledger, account)
    hardest = int(sides.sum(axis=0).argmin())
    up, down = (number(float(value), sign=True) for value in sides[:, hardest])
    return (
        f"“{excerpt(account.row.name)}” was pulled down hardest by step {ledger.steps[hardest]}: "
        f"{up} nats from its chosen and {down} from its rejected answers."
    )
