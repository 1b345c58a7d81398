"""Inside the network: forces on the features of every layer, and what they did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynolab.report.figure import Figure
from dynolab.report.inputs.study import Training
from dynolab.report.lines import Line, LinePanel, line_plot
from dynolab.report.style import objective_name
from dynolab.report.text import number
from dynolab.results.forces import LayerForce
from dynolab.statistics import mean_interval

_PANELS = (
    ("moved", "how far features move", "‖Δh‖ / ‖h‖"),
    ("resultant", "in one direction?", "resultant of unit forces"),
)


def layer_figure(trainings: Sequence[Training]) -> Figure | None:
    """Energy, direction and Δh by layer, means over recorded steps."""
    trainings = [training for training in trainings if training.layers]
    if not trainings:
        return None
    layers = sorted({row.layer for training in trainings for row in training.layers})
    panels = [
        LinePanel(
            title,
            "blocks run",
            unit,
            [_line(training, measure) for training in trainings],
            zero=True,
        )
        for measure, title, unit in _PANELS
    ]
    examples = trainings[0].layers[0].examples
    return Figure(
        "layers",
        "Inside the network",
        " ".join(_message(training) for training in trainings),
        f"Layer 0 is the input of the first block, {layers[-1]} the output of the last. Features: "
        "the hidden states at the response positions of watched answers. Resultant: of the unit "
        f"vectors of {examples} examples’ forces ∂L/∂h, 1 where all push in one direction, about "
        f"{number(examples**-0.5, 2)} where their directions are unrelated: energy without "
        "direction. Bands: 95% over recorded steps.",
        line_plot(panels),
    )


def _line(training: Training, measure: str) -> Line:
    by_layer: dict[int, list[LayerForce]] = {}
    for row in training.layers:
        by_layer.setdefault(row.layer, []).append(row)
    layers = sorted(by_layer)
    return Line(
        objective_name(training.stage),
        layers,
        [
            mean_interval(np.array([getattr(row, measure) for row in by_layer[layer]]))
            for layer in layers
        ],
    )


def _message(training: Training) -> str:
    """Where a step moves features most, and whether forces there agree."""
    moved, resultant = (_line(training, name) for name, *_ in _PANELS)
    most = int(np.argmax([interval.mean for interval in moved.intervals]))
    worst = max(row.unexplained for row in training.layers)
    first, last = (number(resultant.intervals[end].mean, 2) for end in (0, -1))
    return (
        f"A step of {objective_name(training.stage)} moves features by up to "
        f"{number(100 * moved.intervals[most].mean, 2)}% of their size, most at layer "
        f"{number(moved.x[most])}; the resultant of its examples’ forces goes from {first} at the "
        f"first layer to {last} at the last, and first order leaves at most "
        f"{number(100 * worst, 2)}% of Δh."
    )
