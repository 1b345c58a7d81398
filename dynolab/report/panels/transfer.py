"""The figures of task heads: what probing leaves, where features go, which τ is best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynolab.claims.transfer import IN, STRATEGY_LABELS, Sweep
from dynolab.report.page import Html, section, table
from dynolab.report.panels.interval_lines import Line, LinePanel, line_figure
from dynolab.report.style import Plate, join, number, points, with_interval
from dynolab.statistics import Interval, mean_interval

_BANDS = "Lines: means over seeds; bands: 95% t-intervals over seeds."


def energy_plate(task: str, found: Sequence[Sweep]) -> Plate:
    """Energy and direction when finetuning begins, and whether features follow, by τ."""
    figures = (
        ("Energy", "E‖e_y − p‖₂", "energy", True),
        ("Direction in a class", "mean cosine", "consistency", False),
        ("Not shared in a class", "share of the forces", "mismatch", True),
        ("Push followed", "cosine", "followed", False),
    )
    linear = found[0]
    energy, followed = (linear.values(name).mean(1) for name in ("energy", "followed"))
    best = int(followed.argmax())
    return Plate(
        f"{task}-energy",
        f"{_title(task)}: what probing leaves to finetuning",
        f"From {_tau(linear, 0)} to {_tau(linear, -1)} the energy goes from {number(energy[0], 2)} "
        f"to {number(energy[-1], 2)}. Features follow their first push best after "
        f"{_tau(linear, best)}: cosine {number(followed[best], 2)}, against "
        f"{number(followed[0], 2)} after {_tau(linear, 0)}.",
        f"{_BANDS} The first three before the first step of finetuning, on its examples. "
        "Direction: mean cosine between the forces on two features of one class; not shared: the "
        "part of the forces’ squared size that the examples of a class do not have in common. Push "
        "followed: cosine between the first force on a feature and where finetuning took it. Much "
        "energy that is not followed is the energy–direction mismatch: features move far, and not "
        "where they were pushed.",
        line_figure(
            [_panel(found, title, unit, name, zero) for title, unit, name, zero in figures],
            named=STRATEGY_LABELS,
            height=420,
        ),
    )


def feature_plate(task: str, found: Sequence[Sweep]) -> Plate:
    """Where finetuning took the features, by τ."""
    figures = (
        ("Distance", "‖h − h⁰‖₂", "distance", True),
        ("Cosine", "cos(h, h⁰)", "cosine", False),
        ("Dot product", "⟨h, h⁰⟩", "dot_product", False),
        ("Norm", "‖h‖₂", "norm", False),
    )
    linear = found[0]
    ends = [linear.values("distance").mean(1)[at] for at in (0, -1)]
    return Plate(
        f"{task}-features",
        f"{_title(task)}: how far finetuning takes the features",
        f"With a linear head features end {number(ends[0], 2)} from where they were after "
        f"{_tau(linear, 0)}, and {number(ends[1], 2)} after {_tau(linear, -1)}.",
        f"{_BANDS} Means over the second task’s training examples, h⁰ before and h after "
        "finetuning.",
        line_figure(
            [_panel(found, title, unit, name, zero) for title, unit, name, zero in figures],
            named=STRATEGY_LABELS,
            height=400,
        ),
    )


def accuracy_plate(task: str, found: Sequence[Sweep]) -> Plate:
    """Accuracy in and out of distribution, by τ."""
    linear = found[0]
    first = "plain finetuning" if linear.taus[0] == 0 else _tau(linear, 0)
    panels = [
        LinePanel(
            "As trained on" if test == IN else test.capitalize(),
            "epochs of probing τ",
            "Δ accuracy",
            [
                Line(
                    one.strategy,
                    range(len(one.taus)),
                    _means(one.accuracy(test) - linear.accuracy(test)[0]),
                )
                for one in found
            ],
            tickformat="+.0%",
            zero=True,
            ticks=[str(tau) for tau in linear.taus],
        )
        for test in linear.tests
    ]
    told = [
        f"{'in distribution' if test == IN else test} {_best(linear, test)}"
        for test in linear.tests
    ]
    return Plate(
        f"{task}-accuracy",
        f"{_title(task)}: which τ is best, here and elsewhere?",
        f"With a linear head the best mean accuracy is at: {join(told)}.",
        f"{_BANDS} Accuracy less that of {first} with a linear head, paired by seed, on the second "
        "task’s test inputs as they are, and changed as training inputs never are. The best of "
        "several means is flattered by chance; the claims above pick it on other seeds.",
        line_figure(panels, named=STRATEGY_LABELS, height=420),
    )


def strategy_section(task: str, found: Sequence[Sweep]) -> Html:
    """Every strategy at its best τ, picked in distribution, against plain finetuning."""
    base = found[0]
    rows = []
    for one in found:
        at = int(one.accuracy(IN).mean(1).argmax())
        own = [one.accuracy(test)[at] for test in (IN, "elsewhere")]
        plain = [base.accuracy(test)[0] for test in (IN, "elsewhere")]
        rows.append(
            (
                STRATEGY_LABELS[one.strategy],
                one.taus[at],
                *(f"{100 * values.mean():.1f}" for values in own),
                *(points(mean_interval(a - b)) for a, b in zip(own, plain, strict=True)),
                with_interval(mean_interval(one.values("distance")[at]), sign=False),
            )
        )
    first = "plain finetuning" if base.taus[0] == 0 else f"τ = {base.taus[0]}"
    return section(
        f"{task}-strategies",
        f"{_title(task)}: every way at its best",
        f"Each strategy at the τ with its highest mean accuracy in distribution, against {first} "
        "with a linear head.",
        table(
            (
                "strategy",
                "best τ",
                "accuracy, %",
                "elsewhere, %",
                f"less {first}, points",
                "elsewhere, points",
                "features moved",
            ),
            rows,
            "snnnnnn",
        ),
        note="Elsewhere: mean over the changed test sets. Differences paired by seed [95% "
        "t-interval]; the τ is picked on the same seeds, which flatters all of them alike.",
    )


def _panel(found: Sequence[Sweep], title: str, unit: str, name: str, zero: bool) -> LinePanel:
    return LinePanel(
        title,
        "epochs of probing τ",
        unit,
        [Line(one.strategy, range(len(one.taus)), _means(one.values(name))) for one in found],
        zero=zero,
        ticks=[str(tau) for tau in found[0].taus],
    )


def _means(values: np.ndarray) -> list[Interval]:
    return [mean_interval(one) for one in values]


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
