"""What a probe says in a few numbers: the metrics that MLflow shows."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean_by_kind(rows: Sequence[dict]) -> dict[str, float]:
    """`probe/<kind>/logp` and its relatives: means over the training pairs' rows of each kind."""
    groups: dict[str, list[dict]] = {}
    for row in rows:
        if row["split"] == "train":
            groups.setdefault(row["kind"], []).append(row)
    means: dict[str, float] = {}
    for kind, members in groups.items():
        total = math.fsum(row["logp"] for row in members)
        means[f"probe/{kind}/logp"] = total / len(members)
        tokens = sum(row["tokens"] for row in members)
        means[f"probe/{kind}/logp_per_token"] = total / max(tokens, 1)
    chosen = [row for row in groups.get("chosen", []) if "argmax_logp" in row]
    if chosen:
        argmax = math.fsum(row["argmax_logp"] for row in chosen) / len(chosen)
        outside = math.fsum(row["outside_logmass"] for row in chosen)
        means["probe/argmax/logp"] = argmax
        # Geometric mean over tokens: summed log-mass would grow with the answers' length.
        tokens = sum(row["tokens"] for row in chosen)
        means["probe/argmax/outside_mass"] = math.exp(outside / max(tokens, 1))
        means["squeeze/gap"] = argmax - means["probe/chosen/logp"]
    return means
