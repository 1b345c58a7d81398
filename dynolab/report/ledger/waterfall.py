"""From a functional's start to its end: what chosen, rejected, decay and momentum did."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from dynolab.report.figure import Figure, base_layout, menu
from dynolab.report.page import Words
from dynolab.report.style import DOWN, MUTED, SPLITS, UP, ZERO, style_of
from dynolab.report.text import number, plotly_text
from dynolab.results.ledger import FunctionalAccount, LedgerReader
from dynolab.statistics import Interval

BEYOND = "beyond first order"


def waterfall_figure(ledger: LedgerReader) -> Figure:
    """One bar per source of change; a menu chooses the functional."""
    first = _bars(ledger, ledger.accounts[0])
    sources = [*_changes(ledger, ledger.accounts[0])]
    plot = go.Figure(layout=base_layout(420, showlegend=False))
    plot.add_waterfall(
        x=["start", *sources, "end"],
        measure=["absolute", *["relative"] * len(sources), "total"],
        connector={"line": {"color": ZERO}},
        increasing={"marker": {"color": UP}},
        decreasing={"marker": {"color": DOWN}},
        totals={"marker": {"color": MUTED}},
        hovertemplate="%{x}: %{delta:+.4g} nats<extra></extra>",
        **first,
    )
    choices = []
    for account in ledger.accounts:
        bars = _bars(ledger, account)
        shown = {name: [values] for name, values in bars.items()}
        choices.append((functional_name(account), [shown, {"yaxis.range": _range(bars["y"])}]))
    plot.update_layout(updatemenus=[menu(choices)])
    plot.update_yaxes(title_text="log π, nats", range=_range(first["y"]))
    return Words("ledger.html", ledger=ledger, summary=ledger.summary).figure("ledger", plot)


def functional_name(account: FunctionalAccount) -> str:
    """How a functional is named in a menu."""
    row, label = account.row, style_of(account.row.kind).label
    if row.single:
        return f"{plotly_text(row.name, 14)}, {label}"
    return f"{label}, {SPLITS[row.split]}, mean of {len(row.pairs)}"


def _changes(ledger: LedgerReader, account: FunctionalAccount) -> dict[str, Interval]:
    """Sources of change in nats; estimates from sampled steps have an interval.

    Gradients of no answer and rounding are shown where they matter, as in somebody's own training
    with auxiliary losses or 16-bit arithmetic.
    """
    rest = {
        "weight decay": account.decay,
        "earlier momentum": account.carried_in,
        BEYOND: account.residual,
    }
    if ledger.summary.rounding_share > 0.01 or any(own.unexplained for own in ledger.accounts):
        rest[BEYOND] -= account.arithmetic
        rest |= {
            "gradient that no answer made": account.unexplained,
            "rounding": account.arithmetic,
        }
    if ledger.sampled:
        rest["steps not sampled"] = account.missing
    sides = {f"{side} answers": ledger.side_total(account, side) for side in ("chosen", "rejected")}
    return sides | {name: Interval(nats, nats, nats, 1) for name, nats in rest.items()}


def _bars(ledger: LedgerReader, account: FunctionalAccount) -> dict[str, list[Any]]:
    changes = _changes(ledger, account).values()
    texts = [
        number(own.mean, sign=True)
        + (f" ± {number(own.high - own.mean, 2)}" if own.high > own.mean else "")
        for own in changes
    ]
    return {
        "y": [round(v, 5) for v in (account.start, *(own.mean for own in changes), account.end)],
        "text": [number(account.start), *texts, number(account.end)],
    }


def _range(values: list[float]) -> list[float]:
    """Ends of the axis: the bars' own, since log π begins far from zero."""
    start, *changes, end = values
    levels = [end, *np.cumsum([start, *changes]).tolist()]
    pad = 0.15 * (max(levels) - min(levels)) or 1.0
    return [round(min(levels) - pad, 3), round(max(levels) + pad, 3)]
