"""A force map as a sum over parameter blocks, the last layer's prediction, and sums by pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from dynolab.data.encode import Encoded
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import Weights
from dynolab.forces.map.force_map import ForceMap, force_map
from dynolab.forces.map.gram import HEAD
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.objectives import Objective
from dynolab.results.forces import LastLayerFit
from dynolab.training.step_record import Recorded


@dataclass(frozen=True)
class Breakdown:
    """A force map's parts by parameter block (`Blocks`); they add up to the map. `head` is the last
    layer's (unconstrained-features) prediction: `−η (h_m·h_l) (e − π_m)ᵀ G_l` where P = I.
    """

    parts: dict[str, Float[Tensor, "observed updating"]]

    @classmethod
    def of(cls, force_map: ForceMap) -> Breakdown:
        """The breakdown of a map that was made `by_block`."""
        assert force_map.parts is not None
        return cls({name: torch.from_numpy(np.array(p)) for name, p in force_map.parts.items()})

    @property
    def force(self) -> Float[Tensor, "observed updating"]:
        """The whole map, in nats per step."""
        return torch.stack(list(self.parts.values())).sum(0)

    def shares(self) -> dict[str, float]:
        """`‖F_part‖ / ‖F‖`: they need not add up to one, because parts can oppose each other."""
        size = self.force.norm()
        return {name: float(part.norm() / size) for name, part in self.parts.items()}

    def projections(self) -> dict[str, float]:
        """`⟨F_part, F⟩ / ‖F‖²`: they add up to one."""
        force = self.force
        square = force.square().sum()
        return {name: float((part * force).sum() / square) for name, part in self.parts.items()}

    @property
    def head(self) -> Float[Tensor, "observed updating"]:
        """The last layer's part; zero where it does not move, as under adapters."""
        return self.parts.get(HEAD, torch.zeros_like(self.force))

    def last_layer(self) -> LastLayerFit:
        """How well the last layer alone predicts the map."""
        return last_layer_fit(self.force, self.head)


def last_layer_fit(force: Float[Tensor, " ..."], head: Float[Tensor, " ..."]) -> LastLayerFit:
    """The head's part F_h of any change against the whole F."""
    size = force.norm()
    return LastLayerFit(
        cosine=float((force * head).sum() / (size * head.norm())),
        norm_ratio=float(head.norm() / size),
        sign_agreement=float((force.sign() == head.sign()).double().mean()),
    )


def breakdown(
    policy: PolicyFunction,
    observed: Sequence[Encoded],
    updating: Sequence[Recorded],
    objective: Objective,
    *,
    update: float | FrozenUpdate = 1.0,
    at: Weights | None = None,
    memory_bytes: int | None = None,
) -> Breakdown:
    """The parts of `force_map`, one for each of the `Blocks`."""
    computed = force_map(
        policy,
        observed,
        updating,
        objective,
        update=update,
        at=at,
        memory_bytes=memory_bytes,
        by_block=True,
    )
    return Breakdown.of(computed)


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
