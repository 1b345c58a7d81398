"""The page on squeezing: what is provable of one softmax, and how much holds in a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from dynolab.report.figure import (
    LEGEND_ABOVE,
    LEGEND_BELOW,
    LEGEND_OVER_TITLES,
    Figure,
    empty_plot,
    in_panel,
    subplots,
)
from dynolab.report.plots import Line, LinePanel, line_plot
from dynolab.report.style import CHOSEN, DOWN, HISTORY, INK, REJECTED, UP, plotly_text
from dynolab.statistics import Interval
from experiments.chapters.page import Chapter, Facts, read_frame, select
from experiments.chapters.squeezing.claims import model_verdicts, softmax_verdicts

_FEW = 100
"""Up to so many classes the axis of ranks is linear."""

_PICTURES = {
    "own_token": "one softmax, token by token",
    "last_layer": "last layer, features fixed",
    "first_order": "all weights, first order",
}
_ANSWERS = {
    "rejected": "the rejected answer, pushed down",
    "chosen": "the chosen answer, only observed",
}
_SHAPES = (
    ("sharpness", "fall", "Peakier: more fall", "log₁₀ of the factor on the logits"),
    ("label_probability", "fall", "Rarer y: more fall", "log₁₀ p_y"),
    ("label_probability", "gain", "Rarer y: i* gains less", "log₁₀ p_y"),
)
_UNITS = {"fall": "others that fall", "gain": "Δ log p of i* (nats)"}


def squeezing(inputs: Mapping[str, Path], facts: Facts) -> Chapter:
    """Make the chapter of inputs `softmax` and, if a language model was measured, `push`."""
    softmax, push = [inputs["softmax"]], [inputs[name] for name in ("push",) if name in inputs]
    verdicts = [*softmax_verdicts(read_frame(softmax, "counts.jsonl"))]
    panels = read_frame(softmax, "panels.jsonl")
    content = [
        *(_panels(of_size) for _, of_size in panels.groupby("classes", sort=False)),
        _shapes(read_frame(softmax, "shapes.jsonl")),
        _step_paths(read_frame(softmax, "step_paths.jsonl")),
    ]
    if push:
        left = read_frame(push, "explained.jsonl")
        verdicts += model_verdicts(read_frame(push, "pushes.jsonl"), left)
        content += [_explained(left), _ranks(read_frame(push, "ranks.jsonl"))]
    return Chapter(
        title="Squeezing: where pushed-down probability goes",
        lead="A negative gradient on a class moves its probability mostly to classes that are "
        "already likely: squeezing. For one softmax that is provable, and every statement is "
        "tested on random distributions. For a language model, whose tokens share their "
        "parameters, it is not a theorem: rejected answers are pushed down one at a time, and "
        "the change of every token is compared with three approximations.",
        verdicts=verdicts,
        content=content,
        source="Claims 1 to 5 are those of Ren & Sutherland (arXiv 2407.10490); the rule follows "
        "from Δ log pᵢ = η (pᵢ + p_y − Σⱼ pⱼ²) + O(η²), which is concave in η. Counts are of "
        "random cases, brackets hold the upper end of Wilson's 95% interval; figures of the model "
        "are means over pairs with 95% intervals.",
    )


def _panels(panels: pd.DataFrame) -> Figure:
    """Probabilities before and after, and Δ log p, by rank before: one column for each panel."""
    first = panels.iloc[0]
    classes = first.classes
    plot = subplots(
        [plotly_text(name) for name in panels.name],
        520,
        space=0.035,
        row_heights=(0.55, 0.45),
        x={"type": "linear"} if classes <= _FEW else {"type": "log", "dtick": 1},
        y_title="probability",
        margin={"l": 64, "r": 24, "t": 56, "b": 56},
        bargap=0.1,
        legend=LEGEND_OVER_TITLES,
    )
    plot.update_annotations(y=1.04)
    ranks = np.arange(1, classes + 1)
    for col, panel in enumerate(panels.itertuples(), start=1):
        before, after = np.array(panel.before), np.array(panel.after)
        order = np.argsort(-before)
        change = (after - before)[order]
        for name, values, color in (("before", before, HISTORY), ("after", after, CHOSEN)):
            plot.add_scatter(
                x=ranks,
                y=np.exp(values[order]).round(7),
                mode="lines",
                **in_panel(col, name),
                line={"color": color, "width": 2.2, "shape": "hvh"},
            )
        plot.add_scatter(
            x=ranks[order == panel.label],
            y=np.exp(before[[panel.label]]),
            mode="markers",
            **in_panel(col, "y"),
            marker={"symbol": "star", "size": 13, "color": REJECTED},
        )
        bars = {"color": [UP if value > 0 else DOWN for value in change], "line": {"width": 0}}
        plot.add_bar(x=ranks, y=change.round(6), showlegend=False, marker=bars, row=2, col=col)
        others = np.append(np.delete(after - before, panel.label), 0.0)  # y's change is cut off
        margin = 0.15 * float(np.ptp(others))
        limits = [float(others.min()) - margin, float(others.max()) + margin]
        plot.update_yaxes(range=limits, row=2, col=col)
    plot.update_xaxes(title_text="rank before", row=2)
    plot.update_yaxes(rangemode="tozero", nticks=4, row=1)
    plot.update_yaxes(zeroline=True, nticks=5, row=2)
    plot.update_yaxes(title_text="Δ log p (nats)", row=2, col=1)
    return Figure(
        f"panels-{classes}",
        f"What {first.steps} steps do to a softmax over {classes:,} classes",
        "Probabilities by rank, and the change of every class.",
        "Softmax regression on one input with four features, ascending or descending −log p_y at "
        f"learning rate {first.learning_rate:g}. Above: grey before, blue after; the star is the "
        "class y that is pulled up or pushed down. Below: the change of every class; that of y "
        "is cut off.",
        plot,
    )


def _shapes(points: pd.DataFrame) -> Figure:
    """Share of the others that fall by sharpness and by p_y, and what i* gains by p_y."""

    def lines(shape: str, measured: str) -> Iterator[Line]:
        for classes, of_size in select(points, shape=shape).groupby("classes"):
            columns = (of_size[name] for name in (measured, f"{measured}_low", f"{measured}_high"))
            intervals = [*map(Interval, *columns, of_size.cases)]
            yield Line(f"V = {classes:,}", np.log10(of_size.value).to_list(), intervals)

    return Figure(
        "shapes",
        "The shape decides which classes fall",
        "Share of the other classes that fall, and the gain of the likeliest other class i*.",
        "A push of size one (η = 1); means over random distributions with 95% intervals. Left: "
        "normal logits times a factor. Middle and right: normal logits in which the pushed class "
        "holds the probability p_y.",
        line_plot(
            [
                LinePanel(title, across, _UNITS[measured], [*lines(shape, measured)])
                for shape, measured, title, across in _SHAPES
            ],
            height=380,
        ),
    )


def _step_paths(paths: pd.DataFrame) -> Figure:
    """Δ log p of some classes by the size of the step."""
    colors = {"pushed": REJECTED, "likeliest other": UP}
    low = np.min(paths[~paths.role.isin(list(colors))].change.to_list())
    high = np.max(paths.change.to_list())
    margin = 0.1 * (high - low)
    plot = empty_plot(
        380,
        xaxis={"title": {"text": "size of the step η"}},
        yaxis={"title": {"text": "Δ log p (nats)"}, "range": [low - margin, high + margin]},
    )
    for path in paths.itertuples():
        shown = path.role in colors
        plot.add_scatter(
            x=path.steps,
            y=path.change,
            mode="lines",
            name=f"{plotly_text(path.role)} (p = {path.probability:.3g})",
            showlegend=shown,
            line={"color": colors.get(path.role, HISTORY), "width": 3 if shown else 1.4},
        )
    plot.add_hline(y=0, line={"color": INK, "width": 1})
    return Figure(
        "step-paths",
        "What has fallen stays fallen",
        "Δ log p of every class shown by the size of the step.",
        "One random distribution; its median class is pushed. Every curve is concave, so a "
        "class below its start keeps falling. The pushed class leaves the axes.",
        plot,
    )


def _explained(left: pd.DataFrame) -> Figure:
    """`R² = 1 −` the share left over, by approximation and answer."""
    plot = empty_plot(
        380,
        barmode="group",
        bargap=0.4,
        yaxis={"title": {"text": "explained, R²"}, "tickformat": ".0%", "zeroline": True},
        legend=LEGEND_ABOVE,
    )
    for (answer, name), color in zip(_ANSWERS.items(), (REJECTED, CHOSEN), strict=True):
        of_answer = select(left, answer=answer)
        plot.add_bar(
            x=of_answer.picture.map(_PICTURES),
            y=1 - of_answer.left,
            name=name,
            marker={"color": color, "line": {"width": 0}},
            error_y={"array": of_answer.high - of_answer.left, "color": INK},
        )
    return Figure(
        "explained",
        "How much of a language model's squeezing each approximation explains",
        "Explained share of what a push does, by approximation.",
        "R² = 1 − Σ(Δ − predicted)² / Σ Δ², Δ the measured change of log π of every token of the "
        "vocabulary at every position; means over pairs with jackknife 95% intervals. Below zero "
        "an approximation predicts worse than no change. One softmax: z′ = z − s‖h‖²(e_y − π), "
        "which ignores the answer's other tokens. Last layer: the head moves, features are fixed.",
        plot,
    )


def _ranks(ranks: pd.DataFrame) -> Figure:
    """Mean Δ log π by rank before the push: measured, and as each approximation predicts it."""
    plot = subplots(
        [f"At {name}" for name in _ANSWERS.values()],
        400,
        space=0.09,
        margin={"l": 64, "r": 24, "t": 56, "b": 56},
        legend=LEGEND_BELOW,
        x={"type": "category", "showgrid": False, "title_text": "rank before the push"},
        y={"zeroline": True},
        y_title="Δ log π (nats)",
    )
    lines = {"measured": "measured", **_PICTURES}
    dashes = ("solid", "dot", "dash", "dashdot")
    for col, answer in enumerate(_ANSWERS, start=1):
        of_answer = select(ranks, answer=answer)
        names = [
            "–".join(str(rank) for rank in dict.fromkeys(ends)) if ends[0] else "y"
            for ends in zip(of_answer["first"], of_answer["last"], strict=True)
        ]
        for (name, label), color, dash in zip(
            lines.items(), (INK, REJECTED, CHOSEN, UP), dashes, strict=True
        ):
            plot.add_scatter(
                x=names,
                y=of_answer[name],
                mode="lines+markers",
                **in_panel(col, label, name),
                line={"color": color, "dash": dash, "width": 3 if name == "measured" else 2},
            )
    return Figure(
        "ranks",
        "Which tokens rise when an answer is pushed down",
        "Mean change by rank among all other tokens; y: the answer's own token.",
        "Means over positions and pairs, each push from the same weights. A push on the softmax "
        "alone would raise the likeliest tokens and lower the rest.",
        plot,
    )
