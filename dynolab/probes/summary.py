"""Summarizes a probe as metrics for MLflow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from dynolab.grouping import grouped
from dynolab.results.study import ARGMAX, Score


def mean_by_kind(scores: Sequence[Score]) -> dict[str, float]:
    """Metrics `probe/<kind>/logp` etc.: means over the training pairs' rows of each kind."""
    groups = grouped((score.kind, score) for score in scores if score.split == "train")
    means: dict[str, float] = {}
    for kind, members in groups.items():
        total = math.fsum(score.logp for score in members)
        means[f"probe/{kind}/logp"] = total / len(members)
        means[f"probe/{kind}/logp_per_token"] = total / _tokens(members)
    chosen = [score for score in groups.get("chosen", []) if score.argmax_logp is not None]
    if chosen:
        argmax = math.fsum(score.argmax_logp or 0.0 for score in chosen) / len(chosen)
        outside = math.fsum(score.outside_logmass or 0.0 for score in chosen)
        means[f"probe/{ARGMAX}/logp"] = argmax
        # Geometric mean over tokens: summed log-mass would grow with the answers' length.
        means[f"probe/{ARGMAX}/outside_mass"] = math.exp(outside / _tokens(chosen))
        means["squeeze/gap"] = argmax - means["probe/chosen/logp"]
    return means


def _tokens(scores: Iterable[Score]) -> int:
    return max(sum(score.tokens for score in scores), 1)
