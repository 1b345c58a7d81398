"""How often one judge prefers a policy's answers to another's, and how far two judges agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy import ndarray

from dynolab.errors import ConfigError
from dynolab.judges.contests import ORDERS, count
from dynolab.results.judges import Agreement, Judgement, Preferred, WinRate
from dynolab.statistics import Interval, bootstrap, share_interval

WORTH: dict[str, float] = {"a": 1.0, "tie": 0.5, "b": 0.0}
"""Value of a verdict to policy a: ties count half."""

Both = tuple[Judgement, Judgement]
"""Verdicts on one contest: with a's answer first, and with b's."""


def win_rate(judgements: Sequence[Judgement]) -> WinRate:
    """The rate at which policy a's answers are preferred to policy b's.

    A prompt is worth `(v₁ + v₂)/2` to a, with v the worth of its verdict in each order. A judge
    that always prefers the first answer thus makes every prompt a tie. A prompt with a verdict in
    only one order does not count: it would bring position bias into the rate.
    The interval is the 95% percentile bootstrap over prompts. If all prompts are worth the same,
    resampling has no spread, and Wilson's interval is used, which is wide enough for any quantity
    within [0, 1].

    **Arguments:** `judgements`: judgements by one judge of one pair of policies.

    **Raises:** `ConfigError` for judgements of several judges or pairs, or duplicates of one order.
    """
    if not judgements:
        raise ConfigError("judgements", "none", "give the judgements of at least one contest")
    judge, a, b = _single_comparison(judgements)
    judged = both_orders(judgements)
    worth = np.array([worth_to_a(both) for both in judged.values()])
    prompts = len({judgement.id for judgement in judgements})
    rate, first = _rate(worth), _first_answer_share(list(judged.values()))
    unjudged = prompts - len(judged)
    return WinRate(
        judge=judge,
        a=a,
        b=b,
        prompts=prompts,
        judged=len(judged),
        rate=rate.mean,
        low=rate.low,
        high=rate.high,
        wins=int((worth > 0.5).sum()),
        ties=int((worth == 0.5).sum()),
        losses=int((worth < 0.5).sum()),
        lowest=float(worth.sum()) / prompts,
        highest=(float(worth.sum()) + unjudged) / prompts,
        first_share=first.mean,
        first_low=first.low,
        first_high=first.high,
        flipped=sum(
            {judgement.outcome for judgement in both} == {"a", "b"} for both in judged.values()
        ),
        counts=count(judgements),
    )


def both_orders(judgements: Sequence[Judgement]) -> dict[str, Both]:
    """Selects the prompts with a verdict in both orders, by id.

    **Raises:** `ConfigError` for two judgements of a prompt in the same order.
    """
    by_order: dict[tuple[str, bool], Judgement] = {}
    for judgement in judgements:
        if (judgement.id, judgement.swapped) in by_order:
            raise ConfigError(
                "judgements",
                judgement.id,
                f"{judgement.judge} judged it twice in one order; keep one of them",
            )
        by_order[judgement.id, judgement.swapped] = judgement
    judged = {}
    for name in dict.fromkeys(judgement.id for judgement in judgements):
        first, then = (by_order.get((name, swapped)) for swapped in ORDERS)
        if first is not None and then is not None and first.parsed and then.parsed:
            judged[name] = first, then
    return judged


def worth_to_a(both: Both) -> float:
    """Mean worth of the two orders' verdicts: 0, ¼, ½, ¾ or 1."""
    return sum(WORTH[judgement.outcome] for judgement in both) / len(both)


def preferred(both: Both) -> Preferred:
    """The combined verdict of both orders: a tie if they contradict each other."""
    worth = worth_to_a(both)
    return "tie" if worth == WORTH["tie"] else "a" if worth > WORTH["tie"] else "b"


def _single_comparison(judgements: Sequence[Judgement]) -> tuple[str, str, str]:
    triples = {(judgement.judge, judgement.a, judgement.b) for judgement in judgements}
    if len(triples) > 1:
        series = sorted(" of ".join((judge, f"{a} against {b}")) for judge, a, b in triples)
        raise ConfigError("judgements", series, "take one judge and one pair of policies at a time")
    return triples.pop()


def _rate(worth: Float[ndarray, " prompts"]) -> Interval:
    if not worth.size:
        return Interval(np.nan, np.nan, np.nan, 0)
    if (worth == worth[0]).all():
        return share_interval(float(worth.sum()), worth.size)
    low, high = bootstrap(lambda at: worth[at].mean(-1), worth.size)
    return Interval(float(worth.mean()), low, high, worth.size)


def _first_answer_share(judged: Sequence[Both]) -> Interval:
    """Share of verdicts, without ties, for the answer shown first.

    Computed over both orders of the same prompts, so that a better policy does not look like
    position bias.
    """
    first, decided = np.zeros(len(judged)), np.zeros(len(judged))
    for prompt, both in enumerate(judged):
        for judgement in both:
            first[prompt] += judgement.chose_first
            decided[prompt] += judgement.outcome != "tie"
    if not decided.sum():
        return Interval(np.nan, np.nan, np.nan, 0)

    def share(at: Int[ndarray, "draws prompts"]) -> Float[ndarray, " draws"]:
        verdicts = decided[at].sum(-1)
        nothing = np.full_like(verdicts, np.nan)
        return np.divide(first[at].sum(-1), verdicts, out=nothing, where=verdicts > 0)

    low, high = bootstrap(share, len(judged))
    return Interval(float(first.sum() / decided.sum()), low, high, len(judged))


def agreement(first: Sequence[Judgement], second: Sequence[Judgement]) -> Agreement | None:
    """Share and Cohen's kappa of agreement between two judges on one pair of policies.

    A judge's verdict on a prompt combines both orders (`preferred`). None if both judged no prompt
    in common.
    """
    left, right = both_orders(first), both_orders(second)
    shared = [name for name in left if name in right]
    if not shared:
        return None
    verdicts = np.array([preferred(left[name]) for name in shared])
    other_verdicts = np.array([preferred(right[name]) for name in shared])
    low, high = bootstrap(lambda at: cohen_kappa(verdicts[at], other_verdicts[at]), len(shared))
    judged = first[0]
    return Agreement(
        first=judged.judge,
        second=second[0].judge,
        a=judged.a,
        b=judged.b,
        prompts=len(shared),
        share=float((verdicts == other_verdicts).mean()),
        kappa=float(cohen_kappa(verdicts, other_verdicts)),
        kappa_low=low,
        kappa_high=high,
    )


def cohen_kappa(
    first: Shaped[ndarray, "*draws items"], second: Shaped[ndarray, "*draws items"]
) -> Float[ndarray, "*draws"]:
    """`κ = (p_o − p_e)/(1 − p_e)`: observed agreement p_o beyond chance agreement p_e.

    `p_e = Σ_c p₁(c) p₂(c)` over the categories (Cohen 1960). NaN if both judges always give
    the same single verdict, so that p_e = 1.
    """
    agreed = np.asarray((first == second).mean(-1))
    chance = sum(
        (first == category).mean(-1) * (second == category).mean(-1)
        for category in np.union1d(first, second)
    )
    return np.divide(
        agreed - chance, 1 - chance, out=np.full_like(agreed, np.nan), where=chance < 1
    )
