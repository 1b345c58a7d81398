"""Sums of a force map: what each side of an updating pair does to each observed answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.forces.map.force_map import ForceMap


@dataclass(frozen=True)
class PairTotals:
    """Nats by observed answer and updating pair, through chosen and through rejected tokens."""

    pairs: tuple[str, ...]
    from_chosen: Float[ndarray, "observed pairs"]
    from_rejected: Float[ndarray, "observed pairs"]


def pair_totals(force_map: ForceMap) -> PairTotals:
    """`Σ_m Σ_{l ∈ side} F[m, l]` of every observed answer and updating pair, summed in float64."""
    pairs = tuple(dict.fromkeys(response.id for response in force_map.updating))
    sums = block_sums(force_map.force, force_map.observed_offsets, force_map.updating_offsets)
    sides = {side: np.zeros((len(sums), len(pairs))) for side in ("chosen", "rejected")}
    for column, response in enumerate(force_map.updating):
        sides[response.side][:, pairs.index(response.id)] += sums[:, column]
    return PairTotals(pairs, sides["chosen"], sides["rejected"])


def block_sums(
    force: Float[ndarray, "rows columns"], row_offsets: list[int], column_offsets: list[int]
) -> Float[ndarray, "observed updating"]:
    """Sum of every block that the offsets cut out; each holds at least one number."""
    rows = np.add.reduceat(force, row_offsets[:-1], axis=0, dtype=np.float64)
    return np.asarray(np.add.reduceat(rows, column_offsets[:-1], axis=1))
