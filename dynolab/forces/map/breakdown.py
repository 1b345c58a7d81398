"""A force map as a sum over parameter blocks, with the last layer's prediction beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.encode import Encoded
from dynolab.forces.function.logit_function import Weights
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.map.contraction import contract
from dynolab.forces.map.gram import Tile, factor_tiles, plan_tiles
from dynolab.forces.map.memory import memory_for
from dynolab.forces.map.problem import pose
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.objectives import Objective
from dynolab.training.step_record import Recorded

HEAD, EMBEDDING, TIED = "head", "embedding", "tied"


@dataclass(frozen=True)
class Breakdown:
    """A force map's parts by parameter block; they add up to the map.

    `tied` is the product of a shared table's use as embedding with its use as head. `head` is the
    last layer's (unconstrained-features) prediction: `−η (h_m·h_l) (e − π_m)ᵀ G_l` where P = I.
    """

    parts: dict[str, Float[Tensor, "observed updating"]]

    @property
    def force(self) -> Float[Tensor, "observed updating"]:
        """The whole map, in nats per step."""
        return torch.stack(list(self.parts.values())).sum(0)

    def shares(self) -> dict[str, float]:
        """`‖F_part‖ / ‖F‖`: they need not add up to one, because parts can oppose each other."""
        whole = self.force.norm()
        return {name: float(part.norm() / whole) for name, part in self.parts.items()}

    def projections(self) -> dict[str, float]:
        """`⟨F_part, F⟩ / ‖F‖²`: they add up to one."""
        whole = self.force
        square = whole.square().sum()
        return {name: float((part * whole).sum() / square) for name, part in self.parts.items()}

    @property
    def head(self) -> Float[Tensor, "observed updating"]:
        """The last layer's part; zero where it does not move, as under adapters."""
        return self.parts.get(HEAD, torch.zeros_like(self.force))

    def last_layer(self) -> LastLayer:
        """How well the last layer alone predicts the map."""
        return LastLayer.of(self.force, self.head)


@dataclass(frozen=True)
class LastLayer:
    """The head's part F_h against the whole map F: `cos(F_h, F)`, `‖F_h‖/‖F‖`, equal signs."""

    cosine: float
    norm_ratio: float
    sign_agreement: float

    @classmethod
    def of(cls, whole: Float[Tensor, ...], head: Float[Tensor, ...]) -> LastLayer:
        """The head's part of any change against the whole."""
        size = whole.norm()
        return cls(
            cosine=float((whole * head).sum() / (size * head.norm())),
            norm_ratio=float(head.norm() / size),
            sign_agreement=float((whole.sign() == head.sign()).double().mean()),
        )


def breakdown(
    policy: PolicyFunction,
    observed: Sequence[Encoded],
    updating: Sequence[Recorded],
    objective: Objective,
    *,
    update: float | FrozenUpdate = 1.0,
    at: Weights | None = None,
    observed_temperature: float = 1.0,
    memory_bytes: int | None = None,
) -> Breakdown:
    """The force map of `force_map`, one part for each block of parameters, by route B.

    Blocks: `embedding`, `attention.q`, `.k`, `.v`, `.o` (`.qkv` where one matrix makes all three),
    `mlp`, `norms`, `head`, `tied`, and `other` for unrecognised names.
    """
    problem = pose(
        policy,
        observed,
        updating,
        objective,
        update=update,
        at=at,
        observed_temperature=observed_temperature,
    )
    kernel = problem.kernel
    memory = memory_for(policy.device, memory_bytes)
    rows, columns = plan_tiles(kernel, problem.observed, problem.updating, memory)
    shape = sum(sequence.response_length for sequence in observed), problem.columns
    parts: dict[str, Tensor] = {}
    heads = {rule.weight for rule in kernel.rules if rule.head}
    embeddings = {rule.weight for rule in kernel.rules if rule.kind == "embedding"}
    norms = {name for rule in kernel.rules if rule.kind == "norm" for name in rule.names}

    def block_of(name: str, use: str) -> str:
        if use != "own":
            return use
        if name in heads - embeddings:
            return HEAD
        return "norms" if name in norms else block_by_name(name, name in embeddings)

    def accumulator(tile: Tile, name: str, use: str) -> Tensor:
        block = block_of(name, use)
        if block not in parts:
            parts[block] = torch.zeros(shape, dtype=policy.dtype, device=policy.device)
        return parts[block][tile]

    for tile, left, right in factor_tiles(kernel, rows, columns, wanted=lambda tile: True):
        contract(
            left,
            right,
            partial(accumulator, tile),
            scale=kernel.scale,
            workspace=memory // 4,
        )
    return Breakdown({name: problem.rate * part for name, part in sorted(parts.items())})


def block_by_name(name: str, embedding: bool) -> str:
    """The block of a parameter, by its name in transformers' model families."""
    if embedding:
        return EMBEDDING
    for letter, words in _ATTENTION.items():
        if any(word in name for word in words):
            return f"attention.{letter}"
    if any(word in name for word in ("mlp", "feed_forward", "ffn", "fc1", "fc2")):
        return "mlp"
    return HEAD if any(word in name for word in ("lm_head", "embed_out")) else "other"


_ATTENTION = {
    "qkv": ("query_key_value", "c_attn", "qkv_proj", "Wqkv"),
    "q": ("q_proj",),
    "k": ("k_proj",),
    "v": ("v_proj",),
    "o": ("o_proj", "attention.dense", "attn.c_proj", "attn.out_proj"),
}
