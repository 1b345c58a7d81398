"""The page of a force analysis: what pushes what, by which parameters, and whether it lasts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup

from dynolab.grouping import attributes
from dynolab.report.figure import (
    LEGEND_ABOVE,
    LEGEND_OVER_TITLES,
    Figure,
    add_diagonal,
    dot,
    empty_plot,
    in_panel,
    subplots,
)
from dynolab.report.forces.matrices import kernel_size_figure, pair_matrix_figure, stability_figure
from dynolab.report.forces.token_map import token_map_choice_figure
from dynolab.report.inputs.study import CheckpointForces, ForcePageInputs
from dynolab.report.page import Words, table, write_page
from dynolab.report.style import (
    BEST,
    CHOSEN,
    DOWN,
    HISTORY,
    INK,
    REJECTED,
    RESIDUAL,
    UP,
    in_order,
    number,
    objective_name,
    plotly_text,
    style_of,
    token_text,
)
from dynolab.results.forces import UNEXPLAINED

FIRST_ORDER_NATS = 0.5  # per token; from there on the second order is a large part of the change


def write_force_page(inputs: ForcePageInputs, folder: Path) -> None:
    """Writes the self-contained `forces.html`, and every figure as a file in `figures/`."""
    checkpoints = inputs.checkpoints
    moved: defaultdict[tuple[str, str, str, str], float] = defaultdict(float)
    unexplained, errors, maps = {}, [], []
    for checkpoint in checkpoints:
        label, facts = checkpoint.label, checkpoint.facts
        for row in checkpoint.totals:
            moved[label, row.kind, row.split, row.observed_id] += row.total / row.tokens
        if facts.unexplained is not None and facts.unexplained > UNEXPLAINED:
            unexplained[label] = facts.unexplained
        if facts.sum_error is not None:
            errors.append(facts.sum_error)
        maps += [(label, token_map) for token_map in checkpoint.token_maps]
    most = max(map(abs, moved.values()))
    words = Words(
        "forces.html",
        inputs=inputs,
        facts=checkpoints[0].facts,
        left_out=max(checkpoint.facts.left_out for checkpoint in checkpoints),
        most=most if most > FIRST_ORDER_NATS else None,
        unexplained=unexplained,
        error=max(errors, default=None),
    )
    page = words.page(
        inputs.name,
        content=[
            pair_matrix_figure(checkpoints),
            token_map_choice_figure(maps),
            block_figure(checkpoints),
            last_layer_figure(checkpoints),
            terms_figure(checkpoints),
            kernel_size_figure(inputs.kernel),
            stability_figure(inputs.kernel),
            words.section("maps", _facts_table(checkpoints)),
        ],
        settings=inputs.settings,
        stages=inputs.stages,
    )
    write_page(page, folder, "forces.html")


def _facts_table(checkpoints: Sequence[CheckpointForces]) -> Markup:
    """What was computed at each checkpoint, and how accurately."""
    rows = [
        (
            checkpoint.label,
            objective_name(facts.objective),
            number(facts.learning_rate),
            "–" if facts.step is None else facts.step,
            f"{facts.observed_tokens} × {facts.updating_tokens}",
            _moving(facts.adapters, facts.last_layers),
            *(number(error, 2) for error in (facts.sum_error, facts.outside)),
            *map(number, (fit.cosine, fit.norm_ratio, fit.sign_agreement)),
        )
        for checkpoint in checkpoints
        for facts, fit in ((checkpoint.facts, checkpoint.facts.last_layer),)
    ]
    texts = ("checkpoint", "objective", "learning rate", "recorded step", "tokens", "moving")
    numbers = ("error of sums", "outside", "cosine of the head", "its size", "its signs")
    return table((*texts, *numbers), rows, "ssnnnsnnnnn")


def _moving(adapters: bool, last_layers: int | None) -> str:
    """The parameters that the step moves."""
    layers = "" if last_layers is None else f"last {last_layers} layers"
    return ", ".join(filter(None, ("adapters" if adapters else "", layers))) or "all"


_CHECKPOINTS = (HISTORY, CHOSEN, BEST, UP, DOWN, REJECTED, RESIDUAL)
_POINTS = 2_000  # per panel
_TOKENS = 400  # per box
_TERMS = (
    ("observed", "‖A‖ of observed tokens", "a_norm"),
    ("updating", "energy 1 − π of updating tokens", "energy"),
    ("updating", "size of the force ‖G‖", "g_norm"),
)


def block_figure(checkpoints: Sequence[CheckpointForces]) -> Figure:
    """Bars: each block's share of the map; ticks: the size of its part."""
    plot = empty_plot(
        400,
        barmode="group",
        scattermode="group",
        bargap=0.3,
        yaxis={"tickformat": ".0%", "title": {"text": "share of the map"}},
        legend=LEGEND_ABOVE,
    )
    for place, checkpoint in enumerate(checkpoints):
        parts = checkpoint.facts.blocks  # the axis names every checkpoint's, as they are first seen
        shared = {
            "x": [part.block for part in parts],
            "offsetgroup": str(place),
            "legendgroup": str(place),
        }
        plot.add_bar(
            y=[part.projection for part in parts],
            name=plotly_text(checkpoint.label, 32),
            marker={"color": _CHECKPOINTS[place % len(_CHECKPOINTS)], "line": {"width": 0}},
            customdata=[part.share for part in parts],
            hovertemplate="%{x}: %{y:.1%} of the map, its own size %{customdata:.1%}"
            "<extra>%{fullData.name}</extra>",
            **shared,
        )
        plot.add_scatter(
            y=[part.share for part in parts],
            mode="markers",
            hoverinfo="skip",
            showlegend=False,
            marker={"symbol": "line-ew", "size": 14, "line": {"color": INK, "width": 2}},
            **shared,
        )
    return Words("forces.html", checkpoints=checkpoints).figure("blocks", plot)


def last_layer_figure(checkpoints: Sequence[CheckpointForces]) -> Figure | None:
    """Pair totals as the head, the last layer, alone predicts them, against the whole network's.

    Leaves out checkpoints whose last layer does not move, as with adapters.
    """
    moving = [
        checkpoint for checkpoint in checkpoints if checkpoint.facts.last_layer.norm_ratio > 0
    ]
    if not moving:
        return None
    plot = subplots(
        [plotly_text(checkpoint.label, 32) for checkpoint in moving],
        450,
        space=0.06,
        margin={"l": 64, "r": 24, "t": 72, "b": 56},
        legend=LEGEND_OVER_TITLES,
        x={"nticks": 5, "title_text": "whole network (nats)"},
        y={"nticks": 6},
        y_title="head alone (nats)",
    )
    for col, checkpoint in enumerate(moving, start=1):
        rows = checkpoint.totals[:: -(-len(checkpoint.totals) // _POINTS)]
        values = attributes(rows, "from_head") + attributes(rows, "total")
        add_diagonal(plot, (min(values), max(values)), row=1, col=col)
        for on_itself, name, color in (
            (False, "other pairs", HISTORY),
            (True, "own answers", CHOSEN),
        ):
            points = [row for row in rows if (row.observed_id == row.updating_id) == on_itself]
            plot.add_scatter(
                x=attributes(points, "total"),
                y=attributes(points, "from_head"),
                mode="markers",
                **in_panel(col, name),
                marker=dot(color),
                text=[
                    plotly_text(f"“{row.updating_id}” on {row.kind} of “{row.observed_id}”")
                    for row in points
                ],
                hovertemplate="%{text}<br>whole %{x:+.3g}, head %{y:+.3g} nats<extra></extra>",
            )
    return Words("forces.html", moving=moving).figure("last-layer", plot)


def terms_figure(checkpoints: Sequence[CheckpointForces]) -> Figure:
    """Boxes over tokens, by checkpoint and kind of answer."""
    plot = subplots(
        [title for _, title, _ in _TERMS],
        420,
        space=0.06,
        boxmode="group",
        boxgap=0.25,
        margin={"l": 64, "r": 24, "t": 76, "b": 48},
        legend=LEGEND_OVER_TITLES,
        y={"nticks": 6},
    )
    in_legend = set[str]()
    for col, (role, _, term) in enumerate(_TERMS, start=1):
        rows = [(c.label, row) for c in checkpoints for row in c.terms if row.role == role]
        for kind in in_order({row.kind for _, row in rows}):
            of_kind = [(label, row) for label, row in rows if row.kind == kind]
            style, values = style_of(kind), [getattr(row, term) for _, row in of_kind]
            labels = [plotly_text(label, 16) for label, row in of_kind for _ in row.tokens]
            every = slice(None, None, -(-len(labels) // (_TOKENS * len(checkpoints))))
            tokens = [
                f"{token_text(token)} of {plotly_text(row.id, 24)}"
                for _, row in of_kind
                for token in row.tokens
            ]
            plot.add_box(
                x=labels[every],
                y=np.concatenate(values)[every],
                text=tokens[every],
                name=style.label,
                legendgroup=kind,
                showlegend=kind not in in_legend,
                line={"color": style.color, "width": 1.4},
                marker={"color": style.color, "size": 4},
                boxpoints="outliers",
                hovertemplate="%{text}: %{y:.3g}<extra>%{fullData.name}</extra>",
                row=1,
                col=col,
            )
            in_legend.add(kind)
    return Words("forces.html").figure("terms", plot)
