"""Rankings of preference pairs before training, and how well each predicts which answers fall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.results.audit import ChosenChange, Foresight, PairAudit
from dynolab.statistics import (
    auc,
    bootstrap,
    partial_rank_correlation,
    rank_correlation,
)

Ranking = Literal[
    "from_all",
    "from_others",
    "on_all",
    "force",
    "push_down",
    "ches",
    "ches_per_token",
    "likelihood_gap",
    "chosen_logp",
    "chosen_logp_per_token",
    "chosen_tokens",
    "edit_distance",
    "word_overlap",
    "random",
]

RISKY: dict[Ranking, Literal[1, -1]] = {
    "from_all": -1,
    "from_others": -1,
    "on_all": -1,
    "force": -1,
    "push_down": -1,
    "ches": 1,
    "ches_per_token": 1,
    "likelihood_gap": 1,
    "chosen_logp": 1,
    "chosen_logp_per_token": 1,
    "chosen_tokens": -1,
    "edit_distance": -1,
    "word_overlap": 1,
    "random": 1,
}
"""Whether higher (1) or lower (−1) values are said to put the chosen answer at risk.

Forces: negative ones lower the answer. CHES: Razin et al. (arXiv 2410.08847). Edit distance:
similar answers displace each other (Pal et al., arXiv 2402.13228). Likelihood gap: pushing down an
answer that is already unlikely squeezes (Ren & Sutherland, arXiv 2407.10490), so a rejected answer
far below the chosen one is a risk. Log-probability: a likely answer, which is a short one, has
further to fall.
"""

FORCES: tuple[Ranking, ...] = ("from_all", "from_others", "on_all", "force", "push_down")
"""Rankings that take gradients of the model."""

TRIVIAL: tuple[Ranking, ...] = (
    "likelihood_gap",
    "chosen_logp",
    "chosen_logp_per_token",
    "chosen_tokens",
    "edit_distance",
    "word_overlap",
    "random",
)
"""Rankings that take one forward pass or the texts alone: what a force must add to."""

RARER_CLASS = 10
"""Answers that fell, and others, of which an AUC is taken."""


def risk(rows: Sequence[PairAudit], ranking: Ranking) -> Float[ndarray, " pairs"]:
    """The ranked quantity, signed so that higher is worse."""
    return RISKY[ranking] * np.array([getattr(row, ranking) for row in rows], dtype=float)


def worst_first(rows: Sequence[PairAudit], ranking: Ranking) -> list[PairAudit]:
    """Sorts pairs by descending risk; ties keep their order."""
    return [rows[number] for number in np.argsort(-risk(rows, ranking), kind="stable")]


def foresight(rows: Sequence[PairAudit], changes: Sequence[ChosenChange]) -> list[Foresight]:
    """Scores every ranking against what training did, on the pairs with a measured change.

    A force is compared with the trivial ranking that does best on the same pairs, in its order or
    reversed, and every other ranking with the best force.

    **Returns:** one row per split and ranking, in that order.
    """
    change_of = {(change.split, change.pair_id): change.change for change in changes}
    foresights = []
    for split in dict.fromkeys(row.split for row in rows):
        changed = [row for row in rows if row.split == split and (split, row.pair_id) in change_of]
        if changed:
            change = np.array([change_of[split, row.pair_id] for row in changed])
            foresights += _score_rankings(changed, change)
    return foresights


def _score_rankings(rows: Sequence[PairAudit], change: Float[ndarray, " pairs"]) -> list[Foresight]:
    risks = {ranking: risk(rows, ranking) for ranking in RISKY}
    correlations = {
        ranking: float(rank_correlation(values, -change)) for ranking, values in risks.items()
    }

    # A trivial ranking may tell by its reverse, too, and a partial correlation is then the same.
    trivial = max(TRIVIAL, key=lambda ranking: np.nan_to_num(abs(correlations[ranking]), nan=-1))
    force = max(FORCES, key=lambda ranking: np.nan_to_num(correlations[ranking], nan=-1))
    fell = change < 0
    fallen = int(fell.sum())
    few = min(fallen, len(rows) - fallen) < RARER_CLASS
    scores = []
    for ranking, values in risks.items():
        given = trivial if ranking in FORCES else force
        low, high = bootstrap(
            lambda at, values=values: np.asarray(rank_correlation(values[at], -change[at])),
            len(rows),
        )
        partial_low, partial_high = bootstrap(
            lambda at, values=values, other=risks[given]: partial_rank_correlation(
                values[at], -change[at], other[at]
            ),
            len(rows),
        )
        auc_low, auc_high = (
            (np.nan, np.nan)
            if few
            else bootstrap(lambda at, values=values: auc(values[at], fell[at]), len(rows))
        )
        scores.append(
            Foresight(
                ranking=ranking,
                split=rows[0].split,
                pairs=len(rows),
                fallen=fallen,
                spearman=correlations[ranking],
                spearman_low=low,
                spearman_high=high,
                auc=np.nan if few else float(auc(values, fell)),
                auc_low=auc_low,
                auc_high=auc_high,
                given=given,
                partial=float(partial_rank_correlation(values, -change, risks[given])),
                partial_low=partial_low,
                partial_high=partial_high,
            )
        )
    return scores
