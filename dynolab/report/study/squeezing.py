"""Where the probability that rose on chosen answers went, step by step."""

from __future__ import annotations

from collections.abc import Mapping

from dynolab.report.figure import Figure
from dynolab.report.inputs.study import Squeezing
from dynolab.report.lines import Line, LinePanel, line_plot
from dynolab.report.text import plotly_text
from dynolab.report.words import Words
from dynolab.squeezing.index import chosen_by_step, own_share, squeeze_index

_TAKERS = {"y* at the start": squeeze_index, "the answer’s own token": own_share}


def squeezing_figure(squeezing: Squeezing, titles: Mapping[str, str]) -> Figure | None:
    """Shares of the risen probability by step, training by training; None where nothing rose.

    **Arguments:** `titles`: the trainings' names on the page, by name.
    """
    panels = [
        LinePanel(
            plotly_text(titles.get(name, name)),
            "step",
            "share of the risen probability",
            [
                Line(taker, sorted(steps), [share(steps[step]) for step in sorted(steps)])
                for taker, share in _TAKERS.items()
            ],
            ".0%",
            zero=True,
        )
        for name, steps in chosen_by_step(squeezing.risen).items()
        if squeeze_index(steps[max(steps)]).n
    ]
    return Words("study.html").figure("squeezing", line_plot(panels)) if panels else None
