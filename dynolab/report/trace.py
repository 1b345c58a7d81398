"""The page of a trace: the rows that moved a behaviour, and the models trained without them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.data.rows import Example, Split
from dynolab.report.figure import Figure, add_diagonal, dot, empty_plot
from dynolab.report.inputs.study import StageFacts
from dynolab.report.page import Section, Words, write_page
from dynolab.report.style import CHOSEN, excerpt, number, numbers, with_interval
from dynolab.results.trace import TracedModel, TracedRow, TraceSummary
from dynolab.statistics import Interval, column, mean_interval

SHOWN = 20
"""Rows with their texts."""

START, TRAINED = "start", "trained"
MODELS = {
    START: "before the training",
    TRAINED: "the training as it was",
    "lines": "without the rows whose lines are largest",
    "words": "without the rows that resemble it most",
    "random": "without as many random rows",
}
"""Models that are looked at, and what they are called."""


@dataclass(frozen=True)
class TracePageInputs:
    """What the page shows; `examples`: the data's training rows by id; `models`: of `MODELS`."""

    name: str
    rows: Sequence[TracedRow]
    summary: TraceSummary
    examples: Mapping[str, Example]
    models: Mapping[str, TracedModel]
    leave_out: int
    settings: str
    stages: tuple[StageFacts, ...]


def write_trace_page(inputs: TracePageInputs, folder: Path) -> dict[str, float]:
    """Writes the self-contained `trace.html`, and every figure as a file in `figures/`.

    **Returns** the change of the held-out contrast by every model, as metrics.
    """
    changes = heldout_changes(inputs.models)
    words = Words(
        "trace.html",
        inputs=inputs,
        summary=inputs.summary,
        top=inputs.rows[: min(SHOWN, len(inputs.rows))],
        moved=inputs.summary.end["heldout"] - inputs.summary.start["heldout"],
        undone=changes,
    )
    page = words.page(
        inputs.name,
        content=[
            rows_section(inputs, words),
            halves_figure(inputs, words),
            models_section(inputs, words),
        ],
        settings=inputs.settings,
        stages=inputs.stages,
    )
    write_page(page, folder, "trace.html")
    summary = {"changes": {name: change.as_dict() for name, change in changes.items()}}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1))
    return {f"trace/without_{name}": change.mean for name, change in changes.items()}


def of_split(values: Sequence[float], split: Split) -> Float[ndarray, " prompts"]:
    """A number a prompt of one half: every other prompt ranks rows."""
    return np.array(values[1::2] if split == "heldout" else values[::2])


def heldout_changes(models: Mapping[str, TracedModel]) -> dict[str, Interval]:
    """Each model's held-out contrast less that of the training as it was, over prompts.

    `against_random` and `against_words`: without the rows whose lines are largest, less without
    the other ones.
    """
    contrasts = {name: of_split(model.contrast, "heldout") for name, model in models.items()}
    changes = {
        name: mean_interval(contrast - contrasts[TRAINED])
        for name, contrast in contrasts.items()
        if name not in (START, TRAINED)
    }
    for other in ("random", "words"):
        if other in contrasts:
            difference = contrasts["lines"] - contrasts[other]
            changes[f"against_{other}"] = mean_interval(difference)
    return changes


def rows_section(inputs: TracePageInputs, words: Words) -> Section | None:
    """The rows that moved the model furthest towards the behaviour."""
    lines = []
    for place, row in enumerate(inputs.rows[:SHOWN], 1):
        example = inputs.examples[row.id]
        texts = (excerpt(example.prompt, 90, end=True), excerpt(example.chosen, 120))
        figures = numbers(row.nats, row.nats_heldout, sign=True)
        lines.append((place, row.id, *texts, *figures, number(row.words, 2, sign=True)))
    head = ("", "row", "prompt", "answer", "nats", "nats, held out", "words")
    return words.table("rows", head, lines, "nsssnnn", cards=True)


def halves_figure(inputs: TracePageInputs, words: Words) -> Figure:
    """Every row's line to the ranking prompts, and to the held-out ones."""
    nats, heldout = column(inputs.rows, "nats"), column(inputs.rows, "nats_heldout")
    plot = empty_plot(
        420,
        showlegend=False,
        xaxis={"title": {"text": "over the prompts that rank (nats)"}},
        yaxis={"title": {"text": "over the held-out prompts (nats)"}},
    )
    add_diagonal(plot, (min(nats.min(), heldout.min()), max(nats.max(), heldout.max())))
    plot.add_scatter(
        x=nats.tolist(),
        y=heldout.tolist(),
        mode="markers",
        marker=dot(CHOSEN),
        text=[row.id for row in inputs.rows],
        hovertemplate="%{text}: %{x:+.3g}, held out %{y:+.3g} nats<extra></extra>",
    )
    return words.figure("halves", plot)


def models_section(inputs: TracePageInputs, words: Words) -> Section | None:
    """What each model does at the prompts, and what left-out rows changed, held out."""
    changes = heldout_changes(inputs.models)
    has_rates = any(model.rate for model in inputs.models.values())
    lines = []
    for name, label in MODELS.items():
        model = inputs.models.get(name)
        if model is None:
            continue
        contrast = mean_interval(of_split(model.contrast, "heldout"))
        change = with_interval(changes[name], sign=True) if name in changes else ""
        line = [label, with_interval(contrast, sign=True), change]
        if has_rates:
            line.append(with_interval(mean_interval(of_split(model.rate, "heldout"))))
        lines.append(line)
    head = ["model", "unwanted − wanted, held out", "against the training as it was"]
    if has_rates:
        head.append("rate by rule")
    return words.table("models", head, lines, "snnn"[: len(head)])
