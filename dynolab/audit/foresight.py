"""Rankings of preference pairs before training, and how well each predicts which answers fall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from dynolab.results.audit import ChosenChange, Foresight, PairAudit
from dynolab.statistics import auc, bootstrap, column, rank_correlation

Draws = Int[ndarray, "draws n"]

Ranking = Literal[
    "from_all",
    "on_all",
    "force",
    "push_down",
    "ches",
    "ches_per_token",
    "likelihood_gap",
    "edit_distance",
]

RISKY: dict[Ranking, Literal[1, -1]] = {
    "from_all": -1,
    "on_all": -1,
    "force": -1,
    "push_down": -1,
    "ches": 1,
    "ches_per_token": 1,
    "likelihood_gap": 1,
    "edit_distance": -1,
}
"""Whether higher (1) or lower (−1) values are said to put the chosen answer at risk.

Forces: negative ones lower the answer. CHES: Razin et al. (arXiv 2410.08847). Edit distance:
similar answers displace each other (Pal et al., arXiv 2402.13228). Likelihood gap: pushing down an
answer that is already unlikely squeezes (Ren & Sutherland, arXiv 2407.10490), so a rejected answer
far below the chosen one is a risk.
"""


def risk(rows: Sequence[PairAudit], ranking: Ranking) -> Float[ndarray, " pairs"]:
    """The ranked quantity, signed so that higher is worse."""
    return RISKY[ranking] * column(rows, ranking)


def worst_first(rows: Sequence[PairAudit], ranking: Ranking) -> list[PairAudit]:
    """Sorts pairs by descending risk; ties keep their order."""
    return [rows[number] for number in np.argsort(-risk(rows, ranking), kind="stable")]


def foresight(rows: Sequence[PairAudit], changes: Sequence[ChosenChange]) -> list[Foresight]:
    """Scores every ranking against what training did, on the pairs with a measured change.

    **Returns:** one row per split and ranking, in that order.
    """
    change_of = {(change.split, change.pair_id): change.change for change in changes}
    foresights = []
    for split in dict.fromkeys(row.split for row in rows):
        of_split = [row for row in rows if row.split == split]
        measured = [row for row in of_split if (split, row.pair_id) in change_of]
        if measured:
            change = np.array([change_of[split, row.pair_id] for row in measured])
            for ranking in RISKY:
                foresights.append(_score_ranking(ranking, measured, change))
    return foresights


def _score_ranking(
    ranking: Ranking, rows: Sequence[PairAudit], change: Float[ndarray, " pairs"]
) -> Foresight:
    risks, fell = risk(rows, ranking), change < 0

    def correlation(at: Draws) -> Float[ndarray, " draws"]:
        return np.asarray(rank_correlation(risks[at], -change[at]))

    def area(at: Draws) -> Float[ndarray, " draws"]:
        return auc(risks[at], fell[at])

    low, high = bootstrap(correlation, len(rows))
    auc_low, auc_high = bootstrap(area, len(rows))
    return Foresight(
        ranking=ranking,
        split=rows[0].split,
        pairs=len(rows),
        fallen=int(fell.sum()),
        spearman=float(rank_correlation(risks, -change)),
        spearman_low=low,
        spearman_high=high,
        auc=float(auc(risks, fell)),
        auc_low=auc_low,
        auc_high=auc_high,
    )
