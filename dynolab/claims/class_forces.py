"""What is claimed of the forces between classes, and what a study shows of it.

A claim's quantities are means over seeds with t-intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.chapters.classification.force_study import ForceFindings
from dynolab.claims.study import UNEXPLAINED_SHARE, Quantity, Verdict
from dynolab.forces.kernel.stability import THRESHOLD
from dynolab.results.classification import ClassifierState, Grid
from dynolab.statistics import mean_interval, rank_correlation

NETWORKS = {"lenet": "LeNet", "mlp": "MLP", "transformer": "Transformer", "resnet18": "ResNet-18"}
STRONGEST = 6
"""Of the 90 pulls between different digits."""

MOVED = 0.1
"""By how much the logarithm of a norm has to change to have moved, up or down."""

Found = TypeVar("Found")


def assess_forces(
    found: ForceFindings, learning_rate: float, *, digits: bool
) -> tuple[Verdict, ...]:
    """All claims; those on pairs of classes of the first network, at the main learning rate.

    **Arguments:** `digits`: the classes are the ten digits, so that 4 and 9 are theirs.
    """
    return tuple(_all(found, learning_rate, digits))


def _all(found: ForceFindings, rate: float, digits: bool) -> Iterator[Verdict]:
    networks = list(dict.fromkeys(one.network for one in found.states))
    for network in networks:
        states = [
            one for one in found.states if one.network == network and one.learning_rate == rate
        ]
        yield Verdict(
            f"{network}/step",
            NETWORKS[network],
            "First-order forces explain what a step did",
            f"1 − R² < {UNEXPLAINED_SHARE}",
            (
                Quantity(
                    "1 − R²",
                    -1,
                    mean_interval(by_seed(states, lambda s: s.unexplained)),
                    UNEXPLAINED_SHARE,
                    "",
                ),
            ),
        )
        yield _adds_up(found, network)
        yield from _stability(found, network, rate)
    main = [
        one
        for one in found.states
        if one.network == networks[0] and one.learning_rate == rate and one.epoch > 0
    ]
    yield from _pairing(networks[0], main, digits)
    yield _step_size(found, networks[0])


def _adds_up(found: ForceFindings, network: str) -> Verdict:
    sums = [one for one in found.influences if one.network == network]
    epochs = f"{sums[0].epoch} epochs" if sums else "training"
    return Verdict(
        f"{network}/accumulated",
        NETWORKS[network],
        f"Forces summed over all steps of {epochs} explain what these did",
        f"1 − R² < {UNEXPLAINED_SHARE}",
        (
            Quantity(
                "1 − R²",
                -1,
                mean_interval(np.array([one.unexplained for one in sums])),
                UNEXPLAINED_SHARE,
                "",
            ),
        ),
    )


def _stability(found: ForceFindings, network: str, rate: float) -> Iterator[Verdict]:
    """From the first measured epoch after the start to the last."""
    rows = [one for one in found.ranks if (one.network, one.learning_rate) == (network, rate)]
    first, last = window(sorted({epoch for one in rows for epoch in (one.first, one.second)}))
    rows = [one for one in rows if (one.first, one.second) == (first, last)]
    during = f"from epoch {first} to {last}"
    yield Verdict(
        f"{network}/ranks",
        NETWORKS[network],
        f"The order of ‖K‖ over pairs of classes stays {during}",
        f"ρ > {THRESHOLD}",
        (
            Quantity(
                "ρ", 1, mean_interval(np.array([one.correlation for one in rows])), THRESHOLD, ""
            ),
        ),
    )
    yield Verdict(
        f"{network}/size",
        NETWORKS[network],
        f"Its size moves meanwhile, {during}",
        f"|Δ log ‖K‖| > {MOVED}",
        (
            Quantity(
                "|Δ log ‖K‖|",
                1,
                mean_interval(np.abs(np.log1p([one.growth for one in rows]))),
                MOVED,
                "",
            ),
        ),
    )


def window(epochs: Sequence[int]) -> tuple[int, int]:
    """The first epoch after the start, and the last; the start where there are but two."""
    after = [epoch for epoch in epochs if epoch > 0]
    return (after[0], after[-1]) if len(after) > 1 else (epochs[0], epochs[-1])


def _pairing(network: str, states: Sequence[ClassifierState], digits: bool) -> Iterator[Verdict]:
    def verdict(name: str, claim: str, expected: str, quantity: Quantity) -> Verdict:
        return Verdict(f"{network}/{name}", NETWORKS[network], claim, expected, (quantity,))

    yield verdict(
        "own_class",
        "An update on an image lifts its class on others of its class",
        "> 0",
        Quantity("Δp", 1, mean_interval(by_seed(states, lambda s: _diagonal(s.pulls))), unit=""),
    )
    yield verdict(
        "confusions",
        "It lifts its class most on the classes that are taken for it: pairing",
        "ρ > 0",
        Quantity("ρ(pull, p)", 1, mean_interval(by_seed(states, _with_predictions)), unit=""),
    )
    yield verdict(
        "mutual",
        "Pairing is mutual: a class that moves another is moved by it",
        "ρ > 0",
        Quantity("ρ(pull, pullᵀ)", 1, mean_interval(by_seed(states, _with_its_transpose)), unit=""),
    )
    if digits:
        yield verdict(
            "four_nine",
            "A 4 lifts “4” on nines, and a 9 “9” on fours, more than on other digits",
            "> 0",
            Quantity(
                "Δp, less that of other pairs",
                1,
                mean_interval(by_seed(states, _four_nine)),
                unit="",
            ),
        )
        yield Verdict(
            f"{network}/four_nine_strongest",
            NETWORKS[network],
            f"From the second epoch on one of these two is among the {STRONGEST} strongest pulls "
            "between digits",
            f"rank ≤ {STRONGEST}",
            tuple(
                Quantity(
                    f"rank after epoch {epoch}",
                    -1,
                    mean_interval(
                        by_seed([s for s in states if s.epoch == epoch], _four_nine_rank)
                    ),
                    STRONGEST,
                    "",
                )
                for epoch in sorted({state.epoch for state in states} - {1})
            ),
        )


def _step_size(found: ForceFindings, network: str) -> Verdict:
    rows = [one for one in found.states if one.network == network]
    rates = sorted({one.learning_rate for one in rows})
    each = [
        by_seed([one for one in rows if one.learning_rate == rate], lambda s: s.unexplained)
        for rate in (rates[0], rates[-1])
    ]
    quantities = (
        ()
        if len(rates) < 2
        else (
            Quantity(
                f"1 − R² at η = {rates[-1]:g} less that at {rates[0]:g}",
                1,
                mean_interval(each[1] - each[0]),
                unit="",
            ),
        )
    )
    return Verdict(
        f"{network}/step_size",
        NETWORKS[network],
        "The larger the step, the less first order explains",
        "> 0",
        quantities,
    )


def by_seed(
    rows: Sequence[ClassifierState], value: Callable[[ClassifierState], float]
) -> Float[ndarray, " seeds"]:
    """Mean of a value over each seed's epochs; the epochs where it is no number left out."""
    values: dict[int, list[float]] = {}
    for row in rows:
        values.setdefault(row.seed, []).append(value(row))
    return np.array(
        [np.nanmean(some) if np.isfinite(some).any() else np.nan for some in values.values()]
    )


def _diagonal(pulls: Grid) -> float:
    return float(np.diag(np.array(pulls)).mean())


def beside(grid: Grid | Float[ndarray, "classes classes"]) -> Float[ndarray, " pairs"]:
    """The entries off the diagonal, row by row."""
    values = np.array(grid)
    return values[~np.eye(len(values), dtype=bool)]


def _with_predictions(state: ClassifierState) -> float:
    """Pull of class u on o's images, and how far o's images are taken for u already."""
    return float(rank_correlation(beside(state.pulls), beside(np.array(state.predictions).T)))


def _with_its_transpose(state: ClassifierState) -> float:
    return float(rank_correlation(beside(state.pulls), beside(np.array(state.pulls).T)))


def _four_nine(state: ClassifierState) -> float:
    pulls = np.array(state.pulls)
    both = np.array([pulls[4, 9], pulls[9, 4]])
    return float(both.mean() - (beside(pulls).sum() - both.sum()) / (beside(pulls).size - 2))


def _four_nine_rank(state: ClassifierState) -> float:
    """Place of the stronger of 4 on 9 and 9 on 4 among the pulls between classes, from 1."""
    pulls = np.array(state.pulls)
    return 1 + float((beside(pulls) > max(pulls[4, 9], pulls[9, 4])).sum())
