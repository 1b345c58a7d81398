"""The page of task heads: what probing leaves to finetuning, where features go, which τ is best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynolab.chapters.page import Chapter
from dynolab.chapters.transfer.claims import IN, STRATEGY_LABELS, Sweep, assess_transfer, sweeps
from dynolab.chapters.transfer.rows import TransferRow
from dynolab.report.figure import Figure
from dynolab.report.lines import Line, LinePanel, line_plot
from dynolab.report.page import Section, Tile, section, table
from dynolab.report.text import join, number, points, with_interval
from dynolab.statistics import Interval, mean_interval

_SOURCE = (
    "Claims follow Ren et al., How to Prepare Your Task Head for Finetuning (arXiv 2302.05779), of "
    "the linear head. Intervals are 95% t-intervals over seeds, paired by seed; the inner τ is "
    "picked for every seed on the other seeds."
)
_BANDS = "Lines: means over seeds; bands: 95% t-intervals over seeds."


def transfer_chapter(rows: Sequence[TransferRow]) -> Chapter:
    """Makes the chapter; the stage adds its name, settings and stages."""
    content: list[Figure | Section] = []
    for task in _tasks(rows):
        own = [sweep for sweep in sweeps(rows) if sweep.task == task]
        own.sort(key=lambda sweep: sweep.strategy != "linear")
        content += [
            accuracy_figure(task, own),
            energy_figure(task, own),
            feature_figure(task, own),
            strategy_section(task, own),
        ]
    return Chapter(
        title="How to prepare a task head",
        lead=_lead(rows),
        verdicts=assess_transfer(rows),
        content=content,
        tiles=_tiles(rows),
        source=_SOURCE,
    )


def _tasks(rows: Sequence[TransferRow]) -> list[str]:
    return list(dict.fromkeys(row.task for row in rows))


def _lead(rows: Sequence[TransferRow]) -> str:
    taus, seeds = sorted({row.tau for row in rows}), {row.seed for row in rows}
    return (
        f"A network is trained on some {join(_tasks(rows))}; then its head alone is trained on "
        f"others for τ epochs (τ = {join([str(tau) for tau in taus])}), and then all weights. τ = "
        f"0 is plain finetuning; with a large τ the probing finishes first. {len(seeds)} seeds."
    )


def _tiles(rows: Sequence[TransferRow]) -> list[Tile]:
    tiles = []
    for sweep in sweeps(rows):
        if sweep.strategy == "linear":
            for test, where in ((IN, "in distribution"), ("elsewhere", "elsewhere")):
                means, taus = sweep.accuracy(test).mean(1), sweep.taus
                best = int(means.argmax())
                ends = f"{means[0]:.1%} at τ = {taus[0]}, {means[-1]:.1%} at τ = {taus[-1]}"
                what = f"{sweep.task}: best τ {where}"
                tiles.append(Tile(what, str(taus[best]), f"{means[best]:.1%}; {ends}"))
    return tiles


def energy_figure(task: str, sweeps: Sequence[Sweep]) -> Figure:
    """Energy and direction when finetuning begins, and whether features follow, by τ."""
    figures = (
        ("Energy", "E‖e_y − p‖₂", "energy", True),
        ("Direction in a class", "mean cosine", "consistency", False),
        ("Not shared in a class", "share of the forces", "mismatch", True),
        ("Push followed", "cosine", "followed", False),
    )
    linear = sweeps[0]
    energy, followed = (linear.values(name).mean(1) for name in ("energy", "followed"))
    best = int(followed.argmax())
    return Figure(
        f"{task}-energy",
        f"{_title(task)}: what probing leaves to finetuning",
        f"From {_tau(linear, 0)} to {_tau(linear, -1)} the energy goes from {number(energy[0], 2)} "
        f"to {number(energy[-1], 2)}. Features follow their first push best after "
        f"{_tau(linear, best)}: cosine {number(followed[best], 2)}, against "
        f"{number(followed[0], 2)} after {_tau(linear, 0)}.",
        f"{_BANDS} The first three: before the first step of finetuning, on its examples. "
        "Direction: mean cosine between the forces on two features of one class; not shared: the "
        "part of the forces’ squared size that the examples of a class do not have in common. Push "
        "followed: cosine between the first force on a feature and where finetuning took it. Much "
        "energy that is not followed is the energy–direction mismatch: features move far, but not "
        "in the direction of the push.",
        line_plot(
            [_panel(sweeps, title, unit, name, zero) for title, unit, name, zero in figures],
            named=STRATEGY_LABELS,
            height=420,
        ),
    )


def feature_figure(task: str, sweeps: Sequence[Sweep]) -> Figure:
    """Where finetuning took the features, by τ."""
    figures = (
        ("Distance", "‖h − h⁰‖₂", "distance", True),
        ("Cosine", "cos(h, h⁰)", "cosine", False),
        ("Dot product", "⟨h, h⁰⟩", "dot_product", False),
        ("Norm", "‖h‖₂", "norm", False),
    )
    linear = sweeps[0]
    ends = [linear.values("distance").mean(1)[at] for at in (0, -1)]
    return Figure(
        f"{task}-features",
        f"{_title(task)}: how far finetuning takes the features",
        f"With a linear head, features end at distance {number(ends[0], 2)} from their start after "
        f"{_tau(linear, 0)}, and {number(ends[1], 2)} after {_tau(linear, -1)}.",
        f"{_BANDS} Means over the second task’s training examples, h⁰ before and h after "
        "finetuning.",
        line_plot(
            [_panel(sweeps, title, unit, name, zero) for title, unit, name, zero in figures],
            named=STRATEGY_LABELS,
            height=400,
        ),
    )


def accuracy_figure(task: str, sweeps: Sequence[Sweep]) -> Figure:
    """Accuracy in and out of distribution, by τ."""
    linear = sweeps[0]
    first = "plain finetuning" if linear.taus[0] == 0 else _tau(linear, 0)
    panels = [
        LinePanel(
            "As trained on" if test == IN else test.capitalize(),
            "epochs of probing τ",
            "Δ accuracy",
            [
                Line(
                    sweep.strategy,
                    range(len(sweep.taus)),
                    _means(sweep.accuracy(test) - linear.accuracy(test)[0]),
                )
                for sweep in sweeps
            ],
            tickformat="+.0%",
            zero=True,
            ticks=[str(tau) for tau in linear.taus],
        )
        for test in linear.tests
    ]
    best = [
        f"{'in distribution' if test == IN else test} {_best(linear, test)}"
        for test in linear.tests
    ]
    return Figure(
        f"{task}-accuracy",
        f"{_title(task)}: which τ is best, here and elsewhere?",
        f"With a linear head, the best mean accuracy is at: {join(best)}.",
        f"{_BANDS} Accuracy minus that of {first} with a linear head, paired by seed, on the "
        "second task’s test inputs as they are, and with changes that training inputs never have. "
        "The best of several means is biased upwards; the claims above pick it on other seeds.",
        line_plot(panels, named=STRATEGY_LABELS, height=420),
    )


def strategy_section(task: str, sweeps: Sequence[Sweep]) -> Section:
    """Every strategy at its best τ, picked in distribution, against plain finetuning."""
    base = sweeps[0]
    rows = []
    for sweep in sweeps:
        at = int(sweep.accuracy(IN).mean(1).argmax())
        own = [sweep.accuracy(test)[at] for test in (IN, "elsewhere")]
        plain = [base.accuracy(test)[0] for test in (IN, "elsewhere")]
        rows.append(
            (
                STRATEGY_LABELS[sweep.strategy],
                sweep.taus[at],
                *(f"{100 * values.mean():.1f}" for values in own),
                *(points(mean_interval(a - b)) for a, b in zip(own, plain, strict=True)),
                with_interval(mean_interval(sweep.values("distance")[at]), sign=False),
            )
        )
    first = "plain finetuning" if base.taus[0] == 0 else f"τ = {base.taus[0]}"
    return section(
        f"{task}-strategies",
        f"{_title(task)}: every strategy at its best",
        f"Each strategy at the τ with its highest mean accuracy in distribution, against {first} "
        "with a linear head.",
        table(
            (
                "strategy",
                "best τ",
                "accuracy, %",
                "elsewhere, %",
                f"minus {first}, points",
                "elsewhere, points",
                "features moved",
            ),
            rows,
            "snnnnnn",
        ),
        note="Elsewhere: mean over the changed test sets. Differences paired by seed [95% "
        "t-interval]; the τ is picked on the same seeds, which biases all strategies upwards "
        "alike.",
    )


def _panel(sweeps: Sequence[Sweep], title: str, unit: str, name: str, zero: bool) -> LinePanel:
    return LinePanel(
        title,
        "epochs of probing τ",
        unit,
        [
            Line(sweep.strategy, range(len(sweep.taus)), _means(sweep.values(name)))
            for sweep in sweeps
        ],
        zero=zero,
        ticks=[str(tau) for tau in sweeps[0].taus],
    )


def _means(values: np.ndarray) -> list[Interval]:
    return [mean_interval(value) for value in values]


def _best(sweep: Sweep, test: str) -> str:
    means = sweep.accuracy(test).mean(1)
    at = int(means.argmax())
    ends = f"{means[0]:.1%} and {means[-1]:.1%} at the ends"
    return f"τ = {sweep.taus[at]} ({means[at]:.1%}; {ends})"


def _tau(sweep: Sweep, place: int) -> str:
    tau = sweep.taus[place]
    return "no probing" if tau == 0 else f"{tau} epoch{'s' if tau > 1 else ''} of probing"


def _title(task: str) -> str:
    return task.capitalize()
