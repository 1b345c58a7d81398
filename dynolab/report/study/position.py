"""Squeezing at one position: probabilities of its tokens, from a training's start to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynolab.grouping import grouped
from dynolab.report.figure import LEGEND_ABOVE, Figure, empty_plot
from dynolab.report.page import Words
from dynolab.report.style import BEST, CHOSEN, HISTORY, MUTED, REJECTED, token_text
from dynolab.results.study import TokenProbability

_COLORS = {"chosen": CHOSEN, "rejected": REJECTED, "argmax": BEST, "other": MUTED}
_MARKS = {"chosen": "y⁺ ", "rejected": "y⁻ ", "argmax": "y* ", "other": ""}
_REST = "all others"


def position_figure(
    rows: Sequence[TokenProbability], prompts: Mapping[str, str], title: str
) -> Figure | None:
    """Bars of six tokens and all others at a training's start, and beside them at any state of it,
    which a slider chooses; the end first.

    **Arguments:** `rows`: of one position; `prompts`: by pair id; `title`: the training's name.
    """
    if not rows:
        return None
    by_step = grouped((row.step, row) for row in rows)
    steps = sorted(by_step)
    start, end = by_step[steps[0]], by_step[steps[-1]]
    labels = [_MARKS[row.role] + token_text(row.token) for row in start] + [_REST]
    heights = {step: _heights(of_step) for step, of_step in by_step.items()}
    plot = empty_plot(
        380, barmode="group", bargap=0.3, legend=LEGEND_ABOVE, yaxis={"tickformat": ".0%"}
    )
    plot.update_xaxes(type="category")
    plot.update_yaxes(title_text="probability of the next token", rangemode="tozero")
    plot.add_bar(
        x=labels,
        y=heights[steps[0]],
        name="at the start",
        marker={"color": HISTORY, "opacity": 0.45},
        showlegend=False,  # a legend would show one of the other bars' colours
        hovertemplate="%{x}: %{y:.2%} at the start<extra></extra>",
    )
    plot.add_bar(
        x=labels,
        y=heights[steps[-1]],
        name=f"at step {steps[-1]}",
        marker={"color": [*(_COLORS[row.role] for row in start), MUTED]},
        showlegend=False,
        hovertemplate="%{x}: %{y:.2%}<extra></extra>",
    )
    choices = [
        {
            "label": str(step),
            "method": "restyle",
            "args": [{"y": [heights[step]], "name": [f"at step {step}"]}, [1]],
        }
        for step in steps
    ]
    if len(steps) > 2:
        plot.update_layout(
            sliders=[
                {
                    "active": len(steps) - 1,
                    "currentvalue": {"prefix": "step "},
                    "pad": {"t": 36},
                    "steps": choices,
                }
            ]
        )
    moved = []
    for first, last in zip(start, end, strict=True):
        moved.append((first.token, first.role, first.probability, last.probability))
    words = Words(
        "study.html",
        prompt=prompts.get(start[0].pair_id, ""),
        position=start[0],
        moved=moved,
        training=title,
    )
    return words.figure("position", plot)


def _heights(rows: Sequence[TokenProbability]) -> list[float]:
    """The tokens' probabilities, and what is left for all others."""
    shown = [row.probability for row in rows]
    return [*shown, max(0.0, 1 - sum(shown))]
