"""Agreement between two judges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Shaped
from numpy import ndarray

from dynolab.judges.win_rate import both_orders, preferred
from dynolab.results.judges import Agreement, Judgement
from dynolab.statistics import bootstrap


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
