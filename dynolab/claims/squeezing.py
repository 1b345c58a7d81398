"""What is claimed of squeezing: of one softmax for certain, of a language model to be measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from dynolab.claims.study import Counted, Quantity, Verdict
from dynolab.results.pushes import Answer, LeftOver, PairPush, Picture
from dynolab.results.softmax import CaseCount
from dynolab.statistics import Interval, mean_interval, share_interval

SOFTMAX, MODEL = "one softmax", "language model"
HALF = 0.5

_SAID: Mapping[str, tuple[str, str]] = {
    "label_falls": ("Claim 1: the class that is pushed down falls", "always"),
    "best_rises": ("Claim 2: the likeliest other class i* rises", "always"),
    "peakier_more_fall": (
        "Claim 3: the peakier the distribution, the more classes fall",
        "mostly: a trend",
    ),
    "peak_alone_rises": (
        "Claim 3, in the limit: beside a peak of more than 0.9 no class rises but the peak",
        "always",
    ),
    "rarer_more_fall": (
        "Claim 4: the less likely the pushed class, the more classes fall",
        "always",
    ),
    "rarer_fall_further": ("Claim 4: … and the further those fall that fell", "always"),
    "rarer_best_gains_more": ("Claim 4: … and the more the probability of i* rises", "mostly"),
    "rich_get_richer": ("The rich get richer: other classes with more than 1/V rise", "mostly"),
    "poor_get_poorer": ("… and the poor get poorer: other classes below the median fall", "mostly"),
    "larger_is_stronger": (
        "Claim 5: the larger the step, the stronger: y falls and i* rises further",
        "always",
    ),
    "fallen_stays_fallen": (
        "Claim 5: a class that has fallen falls further with a larger step",
        "always",
    ),
    "concave": ("Claim 5: log p′ᵢ/pᵢ is concave in the step", "always"),
    "rule": ("The first-order rule: i ≠ y rises if and only if pᵢ + p_y > Σⱼ pⱼ²", "always"),
    "rule_for_good": ("What the rule lets fall falls at any size of step", "always"),
    "elsewhere_label_falls": (
        "Last layer: y falls at every context whose features agree",
        "always",
    ),
    "elsewhere_best_rises": ("Last layer: the pushed context’s i* rises there, too", "always"),
    "features_best_rises": (
        "Features that move as well (d = 4): i* still rises",
        "mostly: nothing forbids a fall",
    ),
}
_MOSTLY = {
    "peakier_more_fall",
    "rarer_best_gains_more",
    "rich_get_richer",
    "poor_get_poorer",
    "features_best_rises",
}


def softmax_verdicts(counts: Sequence[CaseCount]) -> Iterator[Verdict]:
    """One for each statement: exact ones fail by one violation, trends are judged by their share.

    A trend holds where fewer than half of the cases go the other way.
    """
    for statement, (claim, expected) in _SAID.items():
        own = [one for one in counts if one.statement == statement]
        mostly = statement in _MOSTLY
        quantities = tuple(_trend(one) if mostly else _exact(one) for one in own)
        yield Verdict(f"softmax/{statement}", SOFTMAX, claim, expected, quantities)


def _exact(one: CaseCount) -> Counted:
    return Counted(f"V = {one.classes:,}: violations", int(one.violations), one.cases)


def _trend(one: CaseCount) -> Quantity:
    share = share_interval(one.violations, one.cases)
    percent = Interval(100 * share.mean, 100 * share.low, 100 * share.high, share.n)
    return Quantity(f"V = {one.classes:,}: other way, %", -1, percent, 100 * HALF, "")


def model_verdicts(pushes: Sequence[PairPush], left: Sequence[LeftOver]) -> Iterator[Verdict]:
    """What the provable part says of a real model's answers, where it is no theorem."""
    for name, claim, side, hits in _MOVED:
        own = [one for one in pushes if one.answer == side]
        shares = mean_interval(np.array([hits(one) / one.tokens for one in own]))
        yield Verdict(
            f"model/{name}",
            MODEL,
            claim,
            "mostly: no theorem",
            (Quantity("share of positions", 1, shares, HALF, ""),),
        )
    for answer, picture, claim in _EXPLAINED:
        found = [one for one in left if (one.answer, one.picture) == (answer, picture)]
        quantities = tuple(
            Quantity(
                "left over, 1 − R²", -1, Interval(one.left, one.low, one.high, one.pairs), HALF, ""
            )
            for one in found
        )
        yield Verdict(f"model/{picture}/{answer}", MODEL, claim, "1 − R² < 0.5", quantities)


_MOVED: tuple[tuple[str, str, Answer, Callable[[PairPush], int]], ...] = (
    (
        "label_falls",
        "Claim 1: the tokens that are pushed down fall",
        "rejected",
        lambda one: one.label_fell,
    ),
    (
        "best_rises",
        "Claim 2: the likeliest other token rises",
        "rejected",
        lambda one: one.best_rose,
    ),
    (
        "chosen_falls",
        "The chosen answer’s tokens fall with the rejected ones",
        "chosen",
        lambda one: one.label_fell,
    ),
)
_EXPLAINED: tuple[tuple[Answer, Picture, str], ...] = (
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
