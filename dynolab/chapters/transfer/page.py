"""The page of task heads: what probing leaves to finetuning, where features go, which τ is best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from dynolab.chapters.page import BANDS, Chapter, Facts, path_line, read_frame
from dynolab.chapters.transfer.claims import (
    ELSEWHERE,
    IN,
    Values,
    assess_transfer,
    by_tau,
    with_tests,
)
from dynolab.report.figure import Figure
from dynolab.report.line_plot import LinePanel, line_plot
from dynolab.report.page import Section, section, table
from dynolab.report.text import points, with_interval
from dynolab.statistics import mean_interval

_STRATEGIES = {
    "linear": "linear head",
    "smoothed": "probed with smoothed labels",
    "two_layer": "two-layer head",
    "reinitialised": "last feature layer drawn anew",
}
_START = (
    ("Energy", "E‖e_y − p‖₂", "energy"),
    ("Direction in a class", "mean cosine", "consistency"),
    ("Not shared in a class", "share of the forces", "mismatch"),
    ("Push followed", "cosine", "followed"),
)
_FEATURES = (
    ("Distance", "‖h − h⁰‖₂", "distance"),
    ("Cosine", "cos(h, h⁰)", "cosine"),
    ("Dot product", "⟨h, h⁰⟩", "dot_product"),
    ("Norm", "‖h‖₂", "norm"),
)


def transfer(inputs: Mapping[str, Path], facts: Facts) -> Chapter:
    """Make the chapter; every input is the transfer between one pair of tasks."""
    rows = read_frame(inputs.values(), "transfer.jsonl")
    return Chapter(
        title="How to prepare a task head",
        lead="A network is trained on a first task; then its head alone is trained on a second one "
        "for τ epochs (probing), and then all weights. τ = 0 is plain finetuning; with a large τ "
        "the probing finishes first.",
        verdicts=assess_transfer(rows),
        content=[
            item for task, own in rows.groupby("task", sort=False) for item in _task(task, own)
        ],
        source="Claims follow Ren et al., How to Prepare Your Task Head for Finetuning (arXiv "
        "2302.05779), of the linear head. Intervals are 95% t-intervals over seeds, paired by "
        "seed; the inner τ is picked for every seed on the other seeds.",
    )


def _task(task: str, rows: pd.DataFrame) -> Iterator[Figure | Section]:
    tests, rows = (IN, *rows.elsewhere.iloc[0]), with_tests(rows)
    own = {name: some for name in _STRATEGIES if len(some := rows[rows.strategy == name])}
    taus = [str(tau) for tau in sorted(rows.tau.unique())]
    title = task.capitalize()

    def panel(
        name: str, unit: str, values: Mapping[str, Values], tickformat: str = ""
    ) -> LinePanel:
        lines = [path_line(label, range(len(of.T[0])), of.T) for label, of in values.items()]
        return LinePanel(name, "epochs of probing τ", unit, lines, tickformat, ticks=taus)

    def figure(name: str, of: str, panels: Sequence[LinePanel], note: str) -> Figure:
        plot = line_plot(panels, named=_STRATEGIES, height=420)
        return Figure(f"{task}-{name}", f"{title}: {of}", "By epochs of probing τ.", note, plot)

    start = {test: by_tau(own["linear"], test)[0] for test in tests}
    gains = [
        panel(
            "As trained on" if test == IN else test.capitalize(),
            "Δ accuracy",
            {name: by_tau(some, test) - first for name, some in own.items()},
            "+.0%",
        )
        for test, first in start.items()
    ]
    yield figure(
        "accuracy",
        "which τ is best, here and elsewhere?",
        gains,
        f"{BANDS} Accuracy minus that of the smallest τ with a linear head, paired by seed, on the "
        "second task's test inputs as they are, and with changes that training inputs never have.",
    )
    for name, of, panels, note in (
        (
            "energy",
            "what probing leaves to finetuning",
            _START,
            f"{BANDS} The first three: before the first step of finetuning, on its examples. "
            "Direction: mean cosine between the forces on two features of one class; not shared: "
            "the part of the forces' squared size that the examples of a class do not have in "
            "common. Push followed: cosine between the first force on a feature and where "
            "finetuning took it.",
        ),
        (
            "features",
            "how far finetuning takes the features",
            _FEATURES,
            f"{BANDS} Over the second task's training examples, h⁰ before and h after finetuning.",
        ),
    ):
        measured = [
            panel(label, unit, {name: by_tau(some, field) for name, some in own.items()})
            for label, unit, field in panels
        ]
        yield figure(name, of, measured, note)
    yield _strategies(title, task, own, taus)


def _strategies(
    title: str, task: str, own: Mapping[str, pd.DataFrame], taus: Sequence[str]
) -> Section:
    """Every strategy at its best τ, picked in distribution, against the smallest τ."""
    rows = []
    for name, some in own.items():
        at = int(by_tau(some, IN).mean(1).argmax())
        best = [by_tau(some, test)[at] for test in (IN, ELSEWHERE)]
        plain = [by_tau(own["linear"], test)[0] for test in (IN, ELSEWHERE)]
        rows.append(
            (
                _STRATEGIES[name],
                taus[at],
                *(f"{100 * values.mean():.1f}" for values in best),
                *(points(mean_interval(a - b)) for a, b in zip(best, plain, strict=True)),
                with_interval(mean_interval(by_tau(some, "distance")[at]), sign=False),
            )
        )
    base = f"τ = {taus[0]}"
    head = ("accuracy, %", "elsewhere, %", f"minus {base}, points", "elsewhere, points")
    return section(
        f"{task}-strategies",
        f"{title}: every strategy at its best",
        f"Each at the τ with its highest mean accuracy, against {base} with a linear head.",
        table(("strategy", "best τ", *head, "features moved"), rows, "snnnnnn"),
        note="Elsewhere: mean over the changed test sets. Differences paired by seed [95% "
        "t-interval]; the τ is picked on the same seeds, which raises all strategies alike.",
    )
