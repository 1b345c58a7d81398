"""Claims about forces between classes, and their verdicts.

Figures are means over seeds with t-intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.chapters.classification.force_study import ForceFindings
from dynolab.chapters.classification.rows import ClassifierState, Grid
from dynolab.claims.verdict import Measurement, Verdict, above, below, explains
from dynolab.forces.kernel.stability import THRESHOLD
from dynolab.statistics import mean_interval, rank_correlation

NETWORKS = {"lenet": "LeNet", "mlp": "MLP", "transformer": "Transformer", "resnet18": "ResNet-18"}
STRONGEST = 6
"""How many of the 90 pulls between different digits count as the strongest."""

MOVED = 0.1
"""Least change of the logarithm of a norm, up or down, that counts as a move."""


def assess_forces(
    findings: ForceFindings, learning_rate: float, *, digits: bool
) -> tuple[Verdict, ...]:
    """Judges all claims; those on pairs of classes for the first network at the main learning rate.

    **Arguments:** `digits`: the classes are the ten digits; enables the claims on 4 and 9.
    """
    at_rate = [row for row in findings.states if row.learning_rate == learning_rate]
    networks = list(dict.fromkeys(row.network for row in findings.states))
    main = [row for row in at_rate if row.network == networks[0] and row.epoch > 0]
    return (
        *(
            verdict
            for network in networks
            for verdict in _network_verdicts(findings, network, learning_rate)
        ),
        *_pairing_verdicts(networks[0], main, digits),
        _step_size_verdict(findings, networks[0]),
    )


def _network_verdicts(findings: ForceFindings, network: str, rate: float) -> Iterator[Verdict]:
    states = [
        row for row in findings.states if row.network == network and row.learning_rate == rate
    ]
    yield explains(
        f"{network}/step",
        NETWORKS[network],
        "First-order forces explain what a step did",
        mean_interval(by_seed(states, lambda row: row.unexplained)),
    )
    sums = [row for row in findings.influences if row.network == network]
    epochs = f"{sums[0].epoch} epochs" if sums else "training"
    yield explains(
        f"{network}/accumulated",
        NETWORKS[network],
        f"Forces summed over all steps of {epochs} explain what these did",
        mean_interval(np.array([row.unexplained for row in sums])),
    )
    yield from _stability_verdicts(findings, network, rate)


def _stability_verdicts(findings: ForceFindings, network: str, rate: float) -> Iterator[Verdict]:
    """Verdicts on how ‖K‖ changes from the first measured epoch after the start to the last."""
    rows = [row for row in findings.ranks if (row.network, row.learning_rate) == (network, rate)]
    first, last = window(sorted({epoch for row in rows for epoch in (row.first, row.second)}))
    rows = [row for row in rows if (row.first, row.second) == (first, last)]
    during = f"from epoch {first} to {last}"
    correlation = mean_interval(np.array([row.correlation for row in rows]))
    yield Verdict.of(
        f"{network}/ranks",
        NETWORKS[network],
        f"The order of ‖K‖ over pairs of classes stays {during}",
        f"ρ > {THRESHOLD}",
        above("ρ", correlation, THRESHOLD, unit=""),
    )
    growth = mean_interval(np.abs(np.log1p([row.growth for row in rows])))
    yield Verdict.of(
        f"{network}/size",
        NETWORKS[network],
        f"Its size moves meanwhile, {during}",
        f"|Δ log ‖K‖| > {MOVED}",
        above("|Δ log ‖K‖|", growth, MOVED, unit=""),
    )


def window(epochs: Sequence[int]) -> tuple[int, int]:
    """The first epoch after the start and the last; if there are only two, both of them."""
    after = [epoch for epoch in epochs if epoch > 0]
    return (after[0], after[-1]) if len(after) > 1 else (epochs[0], epochs[-1])


def _pairing_verdicts(
    network: str, states: Sequence[ClassifierState], digits: bool
) -> Iterator[Verdict]:
    def verdict(name: str, claim: str, expected: str, *figures: Measurement) -> Verdict:
        return Verdict.of(f"{network}/{name}", NETWORKS[network], claim, expected, *figures)

    def positive(name: str, value: Callable[[ClassifierState], float]) -> Measurement:
        return above(name, mean_interval(by_seed(states, value)), unit="")

    yield verdict(
        "own_class",
        "An update on an image lifts its class on others of its class",
        "> 0",
        positive("Δp", lambda state: float(np.diag(np.array(state.pulls)).mean())),
    )
    yield verdict(
        "confusions",
        "It lifts its class most on the classes that are taken for it: pairing",
        "ρ > 0",
        positive("ρ(pull, p)", _with_predictions),
    )
    yield verdict(
        "mutual",
        "Pairing is mutual: a class that moves another is moved by it",
        "ρ > 0",
        positive("ρ(pull, pullᵀ)", _with_its_transpose),
    )
    if digits:
        yield verdict(
            "four_nine",
            "A 4 lifts “4” on nines, and a 9 “9” on fours, more than on other digits",
            "> 0",
            positive("Δp, less that of other pairs", _four_nine),
        )
        yield verdict(
            "four_nine_strongest",
            f"From the second epoch on one of these two is among the {STRONGEST} strongest pulls "
            "between digits",
            f"rank ≤ {STRONGEST}",
            *_four_nine_ranks(states),
        )


def _four_nine_ranks(states: Sequence[ClassifierState]) -> Iterator[Measurement]:
    for epoch in sorted({state.epoch for state in states} - {1}):
        ranks = by_seed([state for state in states if state.epoch == epoch], _four_nine_rank)
        yield below(f"rank after epoch {epoch}", mean_interval(ranks), STRONGEST, unit="")


def _step_size_verdict(findings: ForceFindings, network: str) -> Verdict:
    rows = [row for row in findings.states if row.network == network]
    rates = sorted({row.learning_rate for row in rows})
    small, large = (
        by_seed([row for row in rows if row.learning_rate == rate], lambda row: row.unexplained)
        for rate in (rates[0], rates[-1])
    )
    name = f"1 − R² at η = {rates[-1]:g} less that at {rates[0]:g}"
    return Verdict.of(
        f"{network}/step_size",
        NETWORKS[network],
        "The larger the step, the less first order explains",
        "> 0",
        *([above(name, mean_interval(large - small), unit="")] if len(rates) > 1 else []),
    )


def by_seed(
    rows: Sequence[ClassifierState], value: Callable[[ClassifierState], float]
) -> Float[ndarray, " seeds"]:
    """Mean of a value over each seed's epochs, ignoring NaN."""
    values: dict[int, list[float]] = {}
    for row in rows:
        values.setdefault(row.seed, []).append(value(row))
    return np.array(
        [np.nanmean(some) if np.isfinite(some).any() else np.nan for some in values.values()]
    )


def off_diagonal(grid: Grid | Float[ndarray, "classes classes"]) -> Float[ndarray, " pairs"]:
    """Off-diagonal entries, row by row."""
    values = np.array(grid)
    return values[~np.eye(len(values), dtype=bool)]


def _with_predictions(state: ClassifierState) -> float:
    """ρ between the pull of class u on o's images and the probability of u on them already."""
    return float(
        rank_correlation(off_diagonal(state.pulls), off_diagonal(np.array(state.predictions).T))
    )


def _with_its_transpose(state: ClassifierState) -> float:
    return float(rank_correlation(off_diagonal(state.pulls), off_diagonal(np.array(state.pulls).T)))


def _four_nine(state: ClassifierState) -> float:
    pulls = np.array(state.pulls)
    both = np.array([pulls[4, 9], pulls[9, 4]])
    return float(
        both.mean() - (off_diagonal(pulls).sum() - both.sum()) / (off_diagonal(pulls).size - 2)
    )


def _four_nine_rank(state: ClassifierState) -> float:
    """Rank, from 1, of the stronger of 4 on 9 and 9 on 4 among the pulls between classes."""
    pulls = np.array(state.pulls)
    return 1 + float((off_diagonal(pulls) > max(pulls[4, 9], pulls[9, 4])).sum())
