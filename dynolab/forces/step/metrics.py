"""A step's forces as a few numbers: the metrics that MLflow shows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dynolab.results.study import ForceRow

PARTS = ("measured", "predicted", "residual", "from_chosen", "from_rejected", "from_history")


def force_metrics(rows: Sequence[ForceRow]) -> dict[str, float]:
    """`force/<kind>/<part>`: means over the training pairs' answers, in nats per step."""
    groups: dict[str, list[ForceRow]] = {}
    for row in rows:
        if row.split == "train":
            groups.setdefault(row.kind, []).append(row)
    return {
        f"force/{kind}/{part}": math.fsum(getattr(row, part) for row in members) / len(members)
        for kind, members in groups.items()
        for part in PARTS
    }
