"""Claims about forces between classes and about learning paths, and their verdicts.

Figures are means over seeds with t-intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dynolab.claims.verdict import Claimed, Measurement, Verdict, above, below, explains, judged
from dynolab.forces.kernel.stability import THRESHOLD
from dynolab.statistics import mean_interval, rank_correlation
from experiments.chapters.page import select

NETWORKS = {"lenet": "LeNet", "mlp": "MLP", "transformer": "Transformer", "resnet18": "ResNet-18"}
DATA = {
    "toy": "Gaussian toy",
    "images": "images, labels flipped",
    "human": "images, human labels",
}
STRONGEST = 6
"""How many of the 90 pulls between different digits count as the strongest."""

MOVED = 0.1
"""Least change of the logarithm of a norm, up or down, that counts as a move."""

Tables = Mapping[str, pd.DataFrame]


def assess_forces(tables: Tables, learning_rate: float, *, digits: bool) -> list[Verdict]:
    """Judges all claims; those on pairs of classes for the first network at the main learning rate.

    **Arguments:** `tables`: of `forces`; `digits`: the classes are the ten digits; enables the
    claims on 4 and 9.
    """
    networks = list(tables["states"].network.unique())
    verdicts = [
        verdict
        for network in networks
        for verdict in _network_verdicts(tables, network, learning_rate)
    ]
    states = select(tables["states"], network=networks[0])
    main = select(states, learning_rate=learning_rate)
    claims = [*_pairing_claims(main[main.epoch > 0], digits), _step_size_claim(states)]
    return verdicts + judged(networks[0], NETWORKS[networks[0]], claims)


def _network_verdicts(tables: Tables, network: str, rate: float) -> Iterator[Verdict]:
    states, ranks = (
        select(tables[name], network=network, learning_rate=rate) for name in ("states", "ranks")
    )
    yield explains(
        f"{network}/step",
        NETWORKS[network],
        "First-order forces explain what a step did",
        mean_interval(by_seed(states, lambda row: row.unexplained)),
    )
    sums = select(tables["influence"], network=network)
    yield explains(
        f"{network}/accumulated",
        NETWORKS[network],
        f"Forces summed over all steps of {sums.epoch.iloc[0]} epochs explain what these did"
        if len(sums)
        else "Forces summed over all steps of training explain what these did",
        mean_interval(sums.unexplained.to_numpy() if len(sums) else np.array([])),
    )
    first, last = window(sorted({*ranks["first"], *ranks.second}))
    ends = select(ranks, first=first, second=last)
    during = f"from epoch {first} to {last}"
    order = mean_interval(ends.correlation.to_numpy())
    growth = mean_interval(np.abs(np.log1p(ends.growth.to_numpy())))
    claims: list[Claimed] = [
        (
            "ranks",
            f"The order of ‖K‖ over pairs of classes stays {during}",
            f"ρ > {THRESHOLD}",
            above("ρ", order, THRESHOLD, unit=""),
        ),
        (
            "size",
            f"Its size moves meanwhile, {during}",
            f"|Δ log ‖K‖| > {MOVED}",
            above("|Δ log ‖K‖|", growth, MOVED, unit=""),
        ),
    ]
    yield from judged(network, NETWORKS[network], claims)


def window(epochs: Sequence[int]) -> tuple[int, int]:
    """The first epoch after the start and the last; if there are only two, both of them."""
    after = [epoch for epoch in epochs if epoch > 0]
    return (after[0], after[-1]) if len(after) > 1 else (epochs[0], epochs[-1])


def _pairing_claims(states: pd.DataFrame, digits: bool) -> list[Claimed]:
    def positive(name: str, value: Callable[[Any], float]) -> Measurement:
        return above(name, mean_interval(by_seed(states, value)), unit="")

    claims: list[Claimed] = [
        (
            "own_class",
            "An update on an image lifts its class on others of its class",
            "> 0",
            positive("Δp", lambda row: float(np.diag(np.array(row.pulls)).mean())),
        ),
        (
            "confusions",
            "It lifts its class most on the classes that are taken for it: pairing",
            "ρ > 0",
            # The pull of class u on o's images, and the probability of u on them already.
            positive(
                "ρ(pull, p)", lambda row: _correlation(row.pulls, np.array(row.predictions).T)
            ),
        ),
        (
            "mutual",
            "Pairing is mutual: a class that moves another is moved by it",
            "ρ > 0",
            positive("ρ(pull, pullᵀ)", lambda row: _correlation(row.pulls, np.array(row.pulls).T)),
        ),
    ]
    if digits:
        ranks = [
            below(
                f"rank after epoch {epoch}",
                mean_interval(by_seed(rows, _four_nine_rank)),
                STRONGEST,
                unit="",
            )
            for epoch, rows in states.groupby("epoch")
            if epoch != 1
        ]
        claims += [
            (
                "four_nine",
                "A 4 lifts “4” on nines, and a 9 “9” on fours, more than on other digits",
                "> 0",
                positive("Δp, less that of other pairs", _four_nine),
            ),
            (
                "four_nine_strongest",
                f"From the second epoch on one of these two is among the {STRONGEST} strongest "
                "pulls between digits",
                f"rank ≤ {STRONGEST}",
                *ranks,
            ),
        ]
    return claims


def _step_size_claim(states: pd.DataFrame) -> Claimed:
    claim = ("step_size", "The larger the step, the less first order explains", "> 0")
    rates = sorted(states.learning_rate.unique())
    if len(rates) < 2:
        return claim
    small, large = (
        by_seed(select(states, learning_rate=rate), lambda row: row.unexplained)
        for rate in (rates[0], rates[-1])
    )
    name = f"1 − R² at η = {rates[-1]:g} less that at {rates[0]:g}"
    return *claim, above(name, mean_interval(large - small), unit="")


def by_seed(rows: pd.DataFrame, value: Callable[[Any], float]) -> Float[ndarray, " seeds"]:
    """Mean of a value over each seed's epochs, ignoring NaN."""
    values = pd.Series([value(row) for row in rows.itertuples()], dtype=float)
    means: ndarray = values.groupby(rows.seed.to_numpy()).mean().to_numpy()
    return means


def off_diagonal(grid: Any) -> Float[ndarray, " pairs"]:
    """Off-diagonal entries of a square array or nested list, row by row."""
    values = np.array(grid)
    return values[~np.eye(len(values), dtype=bool)]


def _correlation(first: Any, second: Any) -> float:
    return float(rank_correlation(off_diagonal(first), off_diagonal(second)))


def _four_nine(row: Any) -> float:
    pulls, pairs = np.array(row.pulls), off_diagonal(row.pulls)
    both = np.array([pulls[4, 9], pulls[9, 4]])
    return float(both.mean() - (pairs.sum() - both.sum()) / (pairs.size - 2))


def _four_nine_rank(row: Any) -> float:
    """Rank, from 1, of the stronger of 4 on 9 and 9 on 4 among the pulls between classes."""
    pulls = np.array(row.pulls)
    return 1 + float((off_diagonal(pulls) > max(pulls[4, 9], pulls[9, 4])).sum())


def assess_paths(tables: Tables) -> list[Verdict]:
    """Judges all claims on every data set whose paths were followed; `tables`: of `paths`."""
    return [
        verdict
        for data, scores in tables["scores"].groupby("data", sort=False)
        for verdict in judged(
            data, DATA[data], _path_claims(scores, select(tables["epochs"], data=data))
        )
    ]


def _path_claims(scores: pd.DataFrame, epochs: pd.DataFrame) -> list[Claimed]:
    nearer = mean_interval((scores.filtered_error - scores.last_error).to_numpy())
    harder, wrong_labels = (
        mean_interval(scores[name].to_numpy(dtype=float)) for name in ("rank_correlation", "auc")
    )
    claims: list[Claimed] = [
        (
            "zigzag",
            "The harder an example, the more its path zig-zags",
            "ρ > 0",
            above("ρ(zig-zag, ‖e_y − p*‖)", harder, unit=""),
        ),
        (
            "auc",
            "Zig-zag tells wrong labels from right ones",
            "AUC > 0.5",
            above("AUC", wrong_labels, 0.5, unit=""),
        ),
        (
            "filter",
            "The filtered path ends nearer to p* than the last prediction",
            "Δ‖q − p*‖ < 0",
            below("filtered − last", nearer, unit=""),
        ),
    ]
    wrong, easy = (curves(epochs, group) for group in ("mislabelled", "easy"))
    if wrong is not None:
        claims += [
            (
                "detour",
                "A mislabelled example first goes to its true class, then to the given label",
                "rise > 0, then fall < 0",
                *_detour(wrong["truth"]),
            ),
            (
                "others",
                "Within an epoch the others pull a mislabelled example back from its label",
                "Σ < 0",
                below("others", mean_interval(wrong["others"].sum(1))),
            ),
        ]
    if easy is not None:
        lift = above("others", mean_interval(easy["others"].sum(1)))
        claims.append(("easy_others", "They lift an easy one's label", "Σ > 0", lift))
    return claims


def curves(rows: pd.DataFrame, group: str) -> dict[str, Float[ndarray, "seeds epochs"]] | None:
    """Effects of each epoch on the examples of a difficulty, by seed; None if there are none."""
    names = ["own", "others", "label", "truth"]
    table = select(rows, group=group).pivot(index="seed", columns="epoch", values=names)
    return None if table.empty else {name: table[name].to_numpy() for name in names}


def _detour(truth: Float[ndarray, "seeds epochs"]) -> tuple[Measurement, ...]:
    """Rise to the peak and fall after it.

    A seed's peak is the epoch at which the other seeds peak, so that noise creates no peak.
    """
    rise, fall = [], []
    for n, path in enumerate(truth):
        others = np.delete(truth, n, axis=0) if len(truth) > 1 else truth
        peak = int(others.mean(0).argmax())
        rise.append(path[peak] - path[0])
        fall.append(path[-1] - path[peak])
    return (
        above("p_true up to its peak", mean_interval(rise), unit=""),
        below("after it", mean_interval(fall), unit=""),
    )
