"""From a functional's start to its end: what chosen, rejected, decay and momentum did."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from dynolab.data.rows import Split
from dynolab.report.figure import Figure, base_layout
from dynolab.report.inputs.ledger import FunctionalAccount, Ledger
from dynolab.report.style import DOWN, MUTED, PAPER, SPLITS, UP, ZERO, style_of
from dynolab.report.text import number, plotly_text
from dynolab.results.study import ARGMAX
from dynolab.statistics import Interval

PARTS = (
    "chosen answers",
    "rejected answers",
    "weight decay",
    "earlier momentum",
    "not explained",
)
BESIDE = ("gradient of no answer", "rounding")
"""Where they matter, as in somebody's own training: auxiliary losses, 16-bit arithmetic."""


def waterfall_figure(ledger: Ledger) -> Figure:
    """One bar per source of change; a menu chooses the functional."""
    account = ledger.accounts[0]
    plot = go.Figure(layout=base_layout(420, showlegend=False))
    parts = (*PARTS, *BESIDE) if _beside(ledger) else PARTS
    parts = (*parts, "steps not drawn") if ledger.sampled else parts
    plot.add_waterfall(
        x=["start", *parts, "end"],
        measure=["absolute", *["relative"] * len(parts), "total"],
        connector={"line": {"color": ZERO}},
        increasing={"marker": {"color": UP}},
        decreasing={"marker": {"color": DOWN}},
        totals={"marker": {"color": MUTED}},
        hovertemplate="%{x}: %{delta:+.4g} nats<extra></extra>",
        **_bars(ledger, account),
    )
    choices = []
    for own in ledger.accounts:
        bars = _bars(ledger, own)
        shown = {name: [values] for name, values in bars.items()}
        choices.append((functional_name(own), [shown, {"yaxis.range": _range(bars["y"])}]))
    plot.update_layout(updatemenus=[menu(choices)])
    plot.update_yaxes(title_text="log π, nats", range=_range(_bars(ledger, account)["y"]))
    return Figure(
        "ledger",
        f"Who moved it: the account of {'the whole training' if ledger.sampled else ledger.span}",
        _message(ledger),
        "Every response of every batch has a line in the ledger: what it did to the answers from "
        "its step to the end, momentum, learning rate and clipping included. The bars are sums of "
        "lines; “not explained” is what the first order along the path and rounding leave. Sampled "
        "completions "
        "count as chosen where they are pushed up. The menu chooses whose account it is: the mean "
        "log-probability of the answers of a kind, or that of one chosen answer.",
        plot,
    )


def functional_name(account: FunctionalAccount) -> str:
    """How a functional is named in a menu."""
    row = account.row
    if row.single:
        return f"{plotly_text(row.name, 14)}, {style_of(row.kind).label}"
    return f"{style_of(row.kind).label}, {SPLITS[row.split]}, mean of {len(row.pairs)}"


def menu(choices: list[tuple[str, list[Any]]]) -> dict[str, Any]:
    """A drop-down list at the figure's upper right; the first choice is active at first."""
    return {
        "type": "dropdown",
        "x": 1.0,
        "xanchor": "right",
        "y": 1.02,
        "yanchor": "bottom",
        "bgcolor": PAPER,
        "bordercolor": ZERO,
        "font": {"size": 12, "color": MUTED},
        "buttons": [{"label": label, "method": "update", "args": args} for label, args in choices],
    }


def _bars(ledger: Ledger, account: FunctionalAccount) -> dict[str, list[Any]]:
    sides = [ledger.side_total(account, side) for side in ("chosen", "rejected")]
    others = [account.decay, account.carried_in, account.residual]
    if _beside(ledger):
        others[-1] -= account.arithmetic
        others += [account.unexplained, account.arithmetic]
    if ledger.sampled:
        others.append(ledger.not_sampled(account))
    changes = [*(side.mean for side in sides), *others]
    return {
        "y": [round(value, 5) for value in (account.start, *changes, account.end)],
        "text": [
            number(account.start),
            *(_with_margin(side) for side in sides),
            *(number(change, sign=True) for change in others),
            number(account.end),
        ],
    }


def _beside(ledger: Ledger) -> bool:
    rounds = ledger.summary.rounding_share > 0.01
    return rounds or any(account.unexplained for account in ledger.accounts)


def _range(values: list[float]) -> list[float]:
    """Ends of the axis: the bars' own, since log π begins far from zero."""
    start, *changes, end = values
    levels = [end, *np.cumsum([start, *changes]).tolist()]
    pad = 0.15 * (max(levels) - min(levels)) or 1.0
    return [round(min(levels) - pad, 3), round(max(levels) + pad, 3)]


def _with_margin(total: Interval) -> str:
    """A total; with half its interval's width where it is an estimate."""
    margin = total.high - total.mean
    text = number(total.mean, sign=True)
    return f"{text} ± {number(margin, 2)}" if margin > 0 else text


def _message(ledger: Ledger) -> str:
    sums, pairs = [], 0
    splits = [account.row.split for account in ledger.accounts]
    split: Split = "train" if "train" in splits else "heldout"
    for account in ledger.accounts:
        if account.row.split == split and account.row.kind in ("chosen", "rejected", ARGMAX):
            if account.row.single:
                continue
            change = number(account.end - account.start, sign=True)
            up, down = (
                _with_margin(ledger.side_total(account, side)) for side in ("chosen", "rejected")
            )
            pairs = len(account.row.pairs)
            label = style_of(account.row.kind).label
            sums.append(f"{label} {change} = {up} from chosen and {down} from rejected answers")
    summary = ledger.summary
    where = "training" if split == "train" else "held-out"
    of = f"Of {pairs} {where} pair{'s' if pairs > 1 else ''}: " if pairs else ""
    if ledger.sampled:
        return (
            f"{of}{'; '.join(sums)}. One step of {summary.every} was drawn, {summary.steps} in "
            "all; what follows ± is half of a 95% interval."
        )
    return (
        f"{of}{'; '.join(sums)}. The account of {summary.responses} responses in "
        f"{summary.steps} steps closes to {number(summary.closure, 2)} of the path’s length."
    )
