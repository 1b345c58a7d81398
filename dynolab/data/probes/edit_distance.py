"""Normalised edit distance between two answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def edit_distance(tokens: Sequence[int], other: Sequence[int]) -> float:
    """Levenshtein distance of two token sequences, divided by the longer one's length.

    Row by row, `d_j = min(d'_j + 1, d'_{j−1} + [a ≠ b_j], d_{j−1} + 1)`. Insertions within a row
    are a running minimum, `d_j = j + min_{k ≤ j} (t_k − k)`, t the minimum of the other two.

    **Returns:** 0 for equal sequences, 1 if nothing is shared.
    """
    longest = max(len(tokens), len(other))
    if longest == 0:
        return 0.0
    columns, place = np.asarray(other), np.arange(len(other) + 1)
    row = place.copy()
    for token in tokens:
        best = row + 1
        best[1:] = np.minimum(best[1:], row[:-1] + (columns != token))
        row = place + np.minimum.accumulate(best - place)
    return float(row[-1]) / longest
