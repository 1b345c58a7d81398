"""The page of task heads: what probing leaves to finetuning, which τ is best, and what holds.

Figures are means over seeds with t-intervals, paired by seed. The best τ for a seed is always
picked on the *other* seeds, so that luck cannot pick it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dynolab.claims.verdict import Claimed, Measurement, Verdict, above, below, judged
from dynolab.report.figure import Figure
from dynolab.report.page import Section, section, table
from dynolab.report.plots import LinePanel, line_plot
from dynolab.report.style import points, with_interval
from dynolab.statistics import mean_interval, rank_correlation
from experiments.chapters.page import BANDS, Chapter, Facts, path_line, read_frame

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
            item
            for task, of_task in rows.groupby("task", sort=False)
            for item in _task(task, of_task)
        ],
        source="Claims follow Ren et al., How to Prepare Your Task Head for Finetuning (arXiv "
        "2302.05779), of the linear head. Intervals are 95% t-intervals over seeds, paired by "
        "seed; the inner τ is picked for every seed on the other seeds.",
    )


def _task(task: str, rows: pd.DataFrame) -> Iterator[Figure | Section]:
    tests, rows = (IN, *rows.elsewhere.iloc[0]), with_tests(rows)
    by_strategy = {name: some for name in _STRATEGIES if len(some := rows[rows.strategy == name])}
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

    start = {test: by_tau(by_strategy["linear"], test)[0] for test in tests}
    gains = [
        panel(
            "As trained on" if test == IN else test.capitalize(),
            "Δ accuracy",
            {name: by_tau(some, test) - first for name, some in by_strategy.items()},
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
            panel(label, unit, {name: by_tau(some, field) for name, some in by_strategy.items()})
            for label, unit, field in panels
        ]
        yield figure(name, of, measured, note)
    yield _strategies(title, task, by_strategy, taus)


def _strategies(
    title: str, task: str, by_strategy: Mapping[str, pd.DataFrame], taus: Sequence[str]
) -> Section:
    """Every strategy at its best τ, picked in distribution, against the smallest τ."""
    rows = []
    for name, some in by_strategy.items():
        at = int(by_tau(some, IN).mean(1).argmax())
        best = [by_tau(some, test)[at] for test in (IN, ELSEWHERE)]
        plain = [by_tau(by_strategy["linear"], test)[0] for test in (IN, ELSEWHERE)]
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


IN, ELSEWHERE = "in distribution", "elsewhere"
Values = Float[ndarray, "taus seeds"]


def with_tests(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the accuracy on every test set, and the mean `elsewhere`, as columns."""
    changed = pd.DataFrame(rows.elsewhere.to_list(), index=rows.index)
    means = {IN: rows.accuracy, ELSEWHERE: changed.mean(axis=1)}
    return rows.drop(columns=ELSEWHERE).join(changed).assign(**means)


def by_tau(rows: pd.DataFrame, column: str) -> Values:
    """A column of one task and strategy by τ and seed, both ascending."""
    values: Values = rows.pivot(index="tau", columns="seed", values=column).to_numpy()
    return values


def picked_on_others(values: Values, among: Sequence[int]) -> Float[ndarray, " seeds"]:
    """Each seed's value at the τ that is best on average over the other seeds; NaN for one seed.

    **Arguments:** `among`: indices of the τ to pick from.
    """
    if values.shape[1] < 2:
        return np.full(values.shape[1], np.nan)
    choices = values[list(among)]
    others = (choices.sum(1, keepdims=True) - choices) / (values.shape[1] - 1)
    best: Float[ndarray, " seeds"] = choices[others.argmax(0), np.arange(values.shape[1])]
    return best


def assess_transfer(rows: pd.DataFrame) -> list[Verdict]:
    """Judges all claims, task by task."""
    verdicts = []
    for task, of_task in rows.groupby("task", sort=False):
        by_strategy = dict(list(with_tests(of_task).groupby("strategy")))
        claims = [*_energy_claims(by_strategy["linear"]), *_stopping_claims(by_strategy["linear"])]
        if "smoothed" in by_strategy:
            claims += _smoothing_claims(by_strategy["linear"], by_strategy["smoothed"])
        verdicts += judged(task, task, claims)
    return verdicts


def _energy_claims(linear: pd.DataFrame) -> Iterator[Claimed]:
    energy = by_tau(linear, "energy")
    yield (
        "energy",
        "Longer probing leaves less energy",
        "Δ E‖e − p‖ < 0",
        below("last τ − first τ", mean_interval(energy[-1] - energy[0]), unit=""),
    )
    for name, expected, side, where in (
        ("distance", above, ">", "farther"),
        ("cosine", below, "<", "to a smaller cosine with where they were"),
    ):
        spearman = mean_interval(np.asarray(rank_correlation(energy.T, by_tau(linear, name).T)))
        yield (
            name,
            f"More energy moves features {where}",
            f"rank correlation over τ {side} 0",
            expected(f"Spearman, energy and {name}", spearman, unit=""),
        )
    for name, what in (
        ("dot_product", "The dot product with where they were"),
        ("norm", "The norm of features"),
    ):
        values, figures = by_tau(linear, name), []
        if len(values) > 2:
            inner = picked_on_others(values, range(1, len(values) - 1))
            figures = [
                above("inner − least energy", mean_interval(inner - values[-1]), unit=""),
                above("inner − most energy", mean_interval(inner - values[0]), unit=""),
            ]
        yield name, f"{what} rises with energy, then falls", "an inner τ above both ends", *figures
    followed = by_tau(linear, "followed")
    inner = picked_on_others(followed, range(1, len(followed)))
    yield (
        "mismatch",
        "Energy–direction mismatch: an unprobed head has the most energy and features follow its "
        "push less than a probed head’s",
        "Δ energy > 0, Δ followed < 0",
        above("energy, first τ − last τ", mean_interval(energy[0] - energy[-1]), unit=""),
        below("followed, first τ − best later τ", mean_interval(followed[0] - inner), unit=""),
    )


_TESTS = ((IN, "in", "in distribution"), (ELSEWHERE, "out", "out of distribution"))


def _stopping_claims(linear: pd.DataFrame) -> Iterator[Claimed]:
    first = "no probing" if linear.tau.min() == 0 else "first τ"
    for test, short, where in _TESTS:
        values = by_tau(linear, test)
        if len(values) > 2:
            inner = picked_on_others(values, range(1, len(values) - 1))
            yield (
                f"best/{short}",
                f"Probing stopped earlier is best {where}: better than none and than to the end",
                "an inner τ above both ends",
                _points(f"inner τ − {first}", inner - values[0]),
                _points("inner τ − last τ", inner - values[-1]),
            )


def _smoothing_claims(linear: pd.DataFrame, smoothed: pd.DataFrame) -> Iterator[Claimed]:
    def kept(column: str) -> Float[ndarray, " seeds"]:
        last: ndarray = by_tau(smoothed, column)[-1] - by_tau(linear, column)[-1]
        return last

    yield (
        "smoothed/energy",
        "Probing with smoothed labels keeps energy at the last τ",
        "Δ energy > 0",
        above("smoothed − hard", mean_interval(kept("energy")), unit=""),
    )
    for test, short, where in _TESTS:
        yield (
            f"smoothed/{short}",
            f"After the longest probing smoothed labels end more accurate {where}",
            "Δ accuracy > 0",
            _points("smoothed − hard", kept(test)),
        )


def _points(name: str, gain: Float[ndarray, " seeds"]) -> Measurement:
    """A gain in accuracy in percentage points, expected above zero."""
    return above(name, mean_interval(gain).times(100), unit="points")
