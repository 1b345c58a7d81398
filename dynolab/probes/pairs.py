"""Changes of every probed pair over a preference training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.probes.paths import LearningPaths, change
from dynolab.results.study import PairChange, ProbeScore


def complete_pairs(scores: Sequence[ProbeScore]) -> list[ProbeScore]:
    """Scores of the pairs of which both answers were scored.

    Where one exceeds the context it is missing, and trainings on pairs leave its pair out. All
    scores, where no rejected answer was watched.
    """
    whole = {
        side: {(score.split, score.pair_id) for score in scores if score.kind == side}
        for side in ("chosen", "rejected")
    }
    if not whole["rejected"]:
        return list(scores)
    both = whole["chosen"] & whole["rejected"]
    return [score for score in scores if (score.split, score.pair_id) in both]


def pair_changes(paths: LearningPaths, prompts: Mapping[str, str]) -> list[PairChange]:
    """Changes of every pair whose chosen answer was probed, the largest fall first.

    **Arguments:** `prompts`: by pair id; pairs may be missing.
    """
    pairs = len(paths.pairs)
    chosen, rejected = (_changes(paths.logp.get(kind), pairs) for kind in ("chosen", "rejected"))
    gap = _changes(paths.gap, pairs)
    rows = [
        PairChange(
            pair_id=pair,
            prompt=prompts.get(pair),
            chosen=float(chosen[i]),
            rejected=_finite(rejected[i]),
            margin=_finite(chosen[i] - rejected[i]),
            gap=_finite(gap[i]),
        )
        for i, pair in enumerate(paths.pairs)
        if np.isfinite(chosen[i])
    ]
    return sorted(rows, key=lambda row: row.chosen)


def _changes(path: Float[ndarray, "steps pairs"] | None, pairs: int) -> Float[ndarray, " pairs"]:
    return np.full(pairs, np.nan) if path is None else change(path)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
