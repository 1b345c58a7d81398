"""Claims about squeezing, and their verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from dynolab.claims.verdict import Measurement, Verdict, above, below, never
from dynolab.statistics import Interval, mean_interval, share_interval
from experiments.chapters.page import select

SOFTMAX, MODEL = "one softmax", "language model"
HALF = 0.5
ALWAYS = "always"
"""The expectation of statements about every case; any other expectation marks a trend."""

_STATEMENTS: Mapping[str, tuple[str, str]] = {
    "label_falls": ("Claim 1: the class that is pushed down falls", ALWAYS),
    "best_rises": ("Claim 2: the likeliest other class i* rises", ALWAYS),
    "peakier_more_fall": (
        "Claim 3: the peakier the distribution, the more classes fall",
        "mostly: a trend",
    ),
    "peak_alone_rises": (
        "Claim 3, in the limit: beside a peak of more than 0.9 no class rises but the peak",
        ALWAYS,
    ),
    "rarer_more_fall": (
        "Claim 4: the less likely the pushed class, the more classes fall",
        ALWAYS,
    ),
    "rarer_fall_further": ("Claim 4: … and the further those fall that fell", ALWAYS),
    "rarer_best_gains_more": ("Claim 4: … and the more the probability of i* rises", "mostly"),
    "rarer_best_shares_more": (
        "Claim 4: … and the more of the probability that rises goes to i*",
        "mostly",
    ),
    "rich_get_richer": ("The rich get richer: other classes with more than 1/V rise", "mostly"),
    "poor_get_poorer": ("… and the poor get poorer: other classes below the median fall", "mostly"),
    "larger_is_stronger": (
        "Claim 5: the larger the step, the stronger: y falls and i* rises further",
        ALWAYS,
    ),
    "fallen_stays_fallen": (
        "Claim 5: a class that has fallen falls further with a larger step",
        ALWAYS,
    ),
    "concave": ("Claim 5: log p′ᵢ/pᵢ is concave in the step", ALWAYS),
    "rule": ("The first-order rule: i ≠ y rises if and only if pᵢ + p_y > Σⱼ pⱼ²", ALWAYS),
    "rule_for_good": ("What the rule lets fall falls at any size of step", ALWAYS),
    "elsewhere_label_falls": (
        "Last layer: y falls at every context whose features agree",
        ALWAYS,
    ),
    "elsewhere_best_rises": ("Last layer: the pushed context’s i* rises there, too", ALWAYS),
    "features_best_rises": (
        "Features that move as well (d = 4): i* still rises",
        "mostly: nothing forbids a fall",
    ),
}


def softmax_verdicts(counts: pd.DataFrame) -> Iterator[Verdict]:
    """One verdict per statement: one violation refutes an exact one; trends are judged by share.

    A trend holds if fewer than half of the cases go the other way.
    """
    for statement, (claim, expected) in _STATEMENTS.items():
        rows = select(counts, statement=statement).itertuples()
        figures = [_counted(count, exact=expected == ALWAYS) for count in rows]
        yield Verdict.of(f"softmax/{statement}", SOFTMAX, claim, expected, *figures)


def _counted(count: Any, *, exact: bool) -> Measurement:
    if exact:
        return never(f"V = {count.classes:,}: violations", int(count.violations), count.cases)
    percent = share_interval(count.violations, count.cases).times(100)
    return below(f"V = {count.classes:,}: other way, %", percent, 100 * HALF, unit="")


def model_verdicts(pushes: pd.DataFrame, left: pd.DataFrame) -> Iterator[Verdict]:
    """Judges the softmax statements on a real model's answers, where they are not theorems."""
    for name, claim, answer, column in _SHARE_CLAIMS:
        of_answer = select(pushes, answer=answer)
        shares = mean_interval((of_answer[column] / of_answer.tokens).to_numpy())
        figure = above("share of positions", shares, HALF, unit="")
        yield Verdict.of(f"model/{name}", MODEL, claim, "mostly: no theorem", figure)
    for answer, picture, claim in _LEFT_OVER_CLAIMS:
        figures = [
            below(
                "left over, 1 − R²", Interval(row.left, row.low, row.high, row.pairs), HALF, unit=""
            )
            for row in select(left, answer=answer, picture=picture).itertuples()
        ]
        yield Verdict.of(f"model/{picture}/{answer}", MODEL, claim, "1 − R² < 0.5", *figures)


_SHARE_CLAIMS = (
    ("label_falls", "Claim 1: the tokens that are pushed down fall", "rejected", "label_fell"),
    ("best_rises", "Claim 2: the likeliest other token rises", "rejected", "best_rose"),
    (
        "chosen_falls",
        "The chosen answer’s tokens fall with the rejected ones",
        "chosen",
        "label_fell",
    ),
)
_LEFT_OVER_CLAIMS = (
    (
        "rejected",
        "own_token",
        "The softmax of a token by itself explains more than half of what a push does to it",
    ),
    (
        "rejected",
        "last_layer",
        "The last layer explains more than half of what a push does to the pushed answer",
    ),
    (
        "chosen",
        "last_layer",
        "The last layer explains more than half of what a push does to the chosen answer",
    ),
    ("rejected", "first_order", "The first order in all weights explains more than half of it"),
)
