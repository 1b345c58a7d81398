"""The ledger of a training: as parts of any page, and as a page of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dynolab.data.rows import rows_by_source
from dynolab.report.figure import CELLS, Figure, empty_plot, menu
from dynolab.report.forces.token_map import FELL_MOST, token_map_figure
from dynolab.report.inputs.study import StageFacts
from dynolab.report.ledger.fallen import fallen_figure, pusher_section
from dynolab.report.page import Section, Words, write_page
from dynolab.report.style import (
    CHOSEN,
    DIVERGING,
    DOWN,
    MONO,
    MUTED,
    REJECTED,
    SPLITS,
    UP,
    ZERO,
    number,
    plotly_text,
    style_of,
)
from dynolab.results.audit import Band
from dynolab.results.ledger import FunctionalAccount
from dynolab.results.ledger_reader import LedgerReader
from dynolab.statistics import Interval


def ledger_parts(
    ledger: LedgerReader, bands: Mapping[str, Band] | None = None
) -> list[Figure | Section | None]:
    """Who pulled single answers down, sums by cause and by source of the data, who pushed when,
    through which weights.

    **Arguments:** `bands`: of the training's pairs, by an audit before it.
    """
    return [
        fallen_figure(ledger, bands),
        pusher_section(ledger),
        token_map_figure(ledger.token_map, FELL_MOST) if ledger.token_map else None,
        waterfall_figure(ledger),
        sources_section(ledger),
        ledger_map_figure(ledger),
        blocks_figure(ledger),
    ]


def write_ledger_page(
    ledger: LedgerReader, name: str, settings: str, stages: Sequence[StageFacts], folder: Path
) -> None:
    """Writes the self-contained `ledger.html`, and every figure as a file in `figures/`."""
    words = Words("ledger.html", ledger=ledger, summary=ledger.summary)
    page = words.page(
        name,
        content=ledger_parts(ledger),
        settings=settings,
        stages=stages,
    )
    write_page(page, folder, "ledger.html")


BEYOND = "beyond first order"


def waterfall_figure(ledger: LedgerReader) -> Figure:
    """One bar per source of change; a menu chooses the functional."""
    first = _bars(ledger, ledger.accounts[0])
    sources = [*_changes(ledger, ledger.accounts[0])]
    # An account of some steps does not know where the training ended.
    end = "end" if ledger.summary.whole else "start with these steps’ changes"
    plot = empty_plot(420, showlegend=False)
    plot.add_waterfall(
        x=["start", *sources, end],
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
    plot.update_yaxes(title_text="nats", range=_range(first["y"]))
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
    if ledger.together_shown:
        rest = {"all answers together": account.together} | rest
    else:
        rest[BEYOND] += account.together
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
        number(interval.mean, sign=True)
        + (
            f" ± {number(interval.high - interval.mean, 2)}"
            if interval.high > interval.mean
            else ""
        )
        for interval in changes
    ]
    return {
        "y": [
            round(v, 5)
            for v in (account.start, *(interval.mean for interval in changes), account.end)
        ],
        "text": [number(account.start), *texts, number(account.end)],
    }


def _range(values: list[float]) -> list[float]:
    """Ends of the axis: the bars' own, since log π begins far from zero."""
    start, *changes, end = values
    levels = [end, *np.cumsum([start, *changes]).tolist()]
    pad = 0.15 * (max(levels) - min(levels)) or 1.0
    return [round(min(levels) - pad, 3), round(max(levels) + pad, 3)]


MOST = 12  # sources; ids with more beginnings than that are no names of sources


def sources_section(ledger: LedgerReader) -> Section | None:
    """Sources × means of answers: sums of lines in nats. None for a single source."""
    sources = rows_by_source(ledger.examples)
    means = [account for account in ledger.accounts if not account.row.single]
    if not 1 < len(sources) <= MOST or not means:
        return None
    did = [ledger.by_example(account.lines) for account in means]
    rows = [
        (source, len(places), *(number(float(nats[places].sum()), sign=True) for nats in did))
        for source, places in sources.items()
    ]
    head = ("source", "pairs", *(account.row.name for account in means))
    words = Words("ledger.html", ledger=ledger)
    return words.table("sources", head, rows, "s" + "n" * (len(head) - 1))


_EACH_WAY = 20  # examples that are shown in each direction


def ledger_map_figure(ledger: LedgerReader) -> Figure:
    """The strongest examples by steps; a menu chooses the functional."""
    shown = [account for account in ledger.accounts if account.row.split == "train"] or list(
        ledger.accounts
    )
    colorbar = {"title": {"text": "nats", "side": "top"}, "thickness": 12}
    plot = empty_plot(
        620,
        margin={"l": 120, "r": 24, "t": 64, "b": 52},
        coloraxis={"colorscale": DIVERGING, "cmid": 0, "colorbar": colorbar},
    )
    plot.add_heatmap(
        coloraxis="coloraxis",
        hovertemplate="%{y} at step %{x}: %{z:+.3g} nats<extra></extra>",
        hoverongaps=False,
        **_cells(ledger, shown[0]),
    )
    choices = [
        (
            functional_name(account),
            [{name: [values] for name, values in _cells(ledger, account).items()}],
        )
        for account in shown
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
    plot = empty_plot(380, barmode="relative")
    first = _block_bars(ledger, accounts[0])
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
    choices = [(functional_name(own), [_block_bars(ledger, own)]) for own in accounts]
    plot.update_layout(updatemenus=[menu(choices)])
    plot.update_yaxes(title_text="nats")
    return Words("ledger.html", ledger=ledger).figure("ledger-blocks", plot)


def _block_bars(ledger: LedgerReader, account: FunctionalAccount) -> dict[str, list[Any]]:
    blocks = ledger.blocks[account.row.name]
    names = [plotly_text(name, 24) for name in blocks]
    sides = zip(*blocks.values(), strict=True)
    return {"x": [names, names], "y": [[round(value, 5) for value in side] for side in sides]}
