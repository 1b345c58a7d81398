"""Rankings of preference pairs before training, and how well each predicts which answers fall."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dynolab.data.rows import Split
from dynolab.results.audit import ChosenChange, Foresight, PairAudit
from dynolab.statistics import (
    Interval,
    auc,
    bootstrap,
    column,
    partial_rank_correlation,
    rank_correlation,
)

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
"""Quantities of an audit by which pairs can be ranked."""

Predictor = (
    Ranking
    | Literal[
        "from_others",
        "chosen_logp",
        "chosen_logp_per_token",
        "chosen_tokens",
        "word_overlap",
        "random",
    ]
)
"""These, and others that are only held against what training did.

`from_others`: `from_all` without the pair's own part.
"""

RISKY: dict[Predictor, Literal[1, -1]] = {
    "from_all": -1,
    "from_others": -1,
    "on_all": -1,
    "force": -1,
    "push_down": -1,
    "ches": 1,
    "ches_per_token": 1,
    "likelihood_gap": 1,
    "chosen_logp": -1,
    "chosen_logp_per_token": -1,
    "chosen_tokens": 1,
    "edit_distance": -1,
    "word_overlap": 1,
    "random": 1,
}
"""Whether higher (1) or lower (−1) values are said to put the chosen answer at risk.

Forces: negative ones lower the answer. CHES: Razin et al. (arXiv 2410.08847). Edit distance:
similar answers displace each other (Pal et al., arXiv 2402.13228). Likelihood gap: pushing down an
answer that is already unlikely squeezes (Ren & Sutherland, arXiv 2407.10490), so a rejected answer
far below the chosen one is a risk. Log-probability: what is unlikely is squeezed, such as a long
answer. Word overlap: what resembles rejected answers is pushed down with them.
"""

FORCES: tuple[Predictor, ...] = ("from_all", "from_others", "on_all", "force", "push_down")
"""Rankings that take gradients of the model."""

TRIVIAL: tuple[Predictor, ...] = (
    "likelihood_gap",
    "chosen_logp",
    "chosen_logp_per_token",
    "chosen_tokens",
    "edit_distance",
    "word_overlap",
    "random",
)
"""Rankings that take one forward pass or the texts alone: what a force must add to."""

OtherRankings = Mapping[str, Mapping[str, float]]
"""Name of a ranking → id of a pair → its score: the higher, the more its answer would fall."""

RARER_CLASS = 10
"""Answers that fell, and others, of which an AUC is taken."""


def risk(rows: Sequence[PairAudit], ranking: Ranking) -> Float[ndarray, " pairs"]:
    """The ranked quantity, signed so that higher is worse."""
    return RISKY[ranking] * column(rows, ranking)


def worst_first(rows: Sequence[PairAudit], ranking: Ranking) -> list[PairAudit]:
    """Sorts pairs by descending risk; ties keep their order."""
    return [rows[number] for number in np.argsort(-risk(rows, ranking), kind="stable")]


def foresight(
    rows: Sequence[PairAudit],
    changes: Sequence[ChosenChange],
    overlaps: Mapping[tuple[Split, str], float],
    training_pairs: int,
    others: OtherRankings = MappingProxyType({}),
) -> list[Foresight]:
    """Scores every ranking against what training did, on the pairs with a measured change.

    A force is compared with the trivial ranking that does best on the same pairs, in its order or
    reversed, and every other ranking with the best force.

    **Arguments:** `overlaps`: `word_overlap` by split and pair; `training_pairs`: how many were
    audited, of which `rows` may lack some; `others`: rankings from elsewhere, which are left out of
    splits of which they lack pairs.

    **Returns:** one row per split and ranking, in that order.
    """
    foresights = []
    for split, risks, change in risks_and_changes(rows, changes, overlaps, training_pairs, others):
        foresights += _score_rankings(split, risks, change)
    return foresights


def risks_and_changes(
    rows: Sequence[PairAudit],
    changes: Sequence[ChosenChange],
    overlaps: Mapping[tuple[Split, str], float],
    training_pairs: int,
    others: OtherRankings = MappingProxyType({}),
) -> Iterator[tuple[Split, dict[str, Float[ndarray, " pairs"]], Float[ndarray, " pairs"]]]:
    """What is compared, split by split: every ranking's risk of a pair, and its change in nats.

    Arguments as of `foresight`.
    """
    change_of = {(change.split, change.pair_id): change.change for change in changes}
    for split in dict.fromkeys(row.split for row in rows):
        changed = [row for row in rows if row.split == split and (split, row.pair_id) in change_of]
        if changed:
            change = np.array([change_of[split, row.pair_id] for row in changed])
            overlap = np.array([overlaps[split, row.pair_id] for row in changed])
            risks = _risks(changed, overlap, training_pairs)
            for name, scores in others.items():
                if all(row.pair_id in scores for row in changed):
                    risks[name] = np.array([scores[row.pair_id] for row in changed])
            yield split, risks, change


def _risks(
    rows: Sequence[PairAudit], overlap: Float[ndarray, " pairs"], training_pairs: int
) -> dict[str, Float[ndarray, " pairs"]]:
    """What each ranking says of each pair, signed so that higher is worse.

    The step on all training pairs is the mean of their steps: a training pair's own part of it is
    `force / training_pairs`, and a held-out pair has none.
    """
    own_part = [row.force / training_pairs if row.split == "train" else 0.0 for row in rows]
    values: dict[Predictor, Float[ndarray, " pairs"]] = {
        "from_others": np.array([row.from_all for row in rows]) - np.array(own_part),
        "word_overlap": overlap,
    }
    for ranking in RISKY:
        if ranking not in values:
            values[ranking] = np.array([getattr(row, ranking) for row in rows], dtype=float)
    return {ranking: sign * values[ranking] for ranking, sign in RISKY.items()}


def _score_rankings(
    split: Split,
    risks: Mapping[str, Float[ndarray, " pairs"]],
    change: Float[ndarray, " pairs"],
) -> list[Foresight]:
    pairs = len(change)
    fell = change < 0
    fallen = int(fell.sum())
    correlations = {
        ranking: float(rank_correlation(values, -change)) for ranking, values in risks.items()
    }
    # A trivial ranking may tell by its reverse, too, and a partial correlation is then the same.
    trivial = max(TRIVIAL, key=lambda ranking: np.nan_to_num(abs(correlations[ranking]), nan=-1))
    force = max(FORCES, key=lambda ranking: np.nan_to_num(correlations[ranking], nan=-1))
    below = int((risks["force"] > 0).sum())
    scores = []
    for ranking, values in risks.items():
        given = trivial if ranking in FORCES else force
        agreement = _agreement(values, change)
        partial = _agreement(values, change, given=risks[given])
        area = _area(values, fell)
        right = _share_right(values, fell, below)
        scores.append(
            Foresight(
                ranking=ranking,
                split=split,
                pairs=pairs,
                fallen=fallen,
                spearman=agreement.mean,
                spearman_low=agreement.low,
                spearman_high=agreement.high,
                auc=area.mean,
                auc_low=area.low,
                auc_high=area.high,
                given=given,
                partial=partial.mean,
                partial_low=partial.low,
                partial_high=partial.high,
                below=below,
                right=right.mean,
                right_low=right.low,
                right_high=right.high,
            )
        )
    return scores


def _agreement(
    risks: Float[ndarray, " pairs"],
    change: Float[ndarray, " pairs"],
    given: Float[ndarray, " pairs"] | None = None,
) -> Interval:
    """Rank correlation of risks with falls, and given another ranking's risks."""

    def correlation(at: Int[ndarray, "*draws n"]) -> Float[ndarray, "*draws"]:
        if given is None:
            return np.asarray(rank_correlation(risks[at], -change[at]))
        return partial_rank_correlation(risks[at], -change[at], given[at])

    pairs = np.arange(len(change))
    low, high = bootstrap(correlation, len(change))
    return Interval(float(correlation(pairs)), low, high, len(change))


def _share_right(
    risks: Float[ndarray, " pairs"], fell: Bool[ndarray, " pairs"], said: int
) -> Interval:
    """For what share of pairs it is right that the first `said` of a ranking fall, no others."""
    falls = np.zeros_like(fell)
    falls[np.argsort(-risks, kind="stable")[:said]] = True
    right = falls == fell
    low, high = bootstrap(lambda at: right[at].mean(-1), len(fell))
    return Interval(float(right.mean()), low, high, len(fell))


def _area(risks: Float[ndarray, " pairs"], fell: Bool[ndarray, " pairs"]) -> Interval:
    """AUC of risks for falls; NaN with fewer than `RARER_CLASS` answers of either kind."""
    fallen = int(fell.sum())
    if min(fallen, len(fell) - fallen) < RARER_CLASS:
        return Interval(np.nan, np.nan, np.nan, len(fell))
    low, high = bootstrap(lambda at: auc(risks[at], fell[at]), len(fell))
    return Interval(float(auc(risks, fell)), low, high, len(fell))
