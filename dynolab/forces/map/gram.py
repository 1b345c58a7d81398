"""Computes the inner products `⟨∇ s_m, P ∇ s_l⟩` that a force map consists of, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import in_groups
from dynolab.data.encode import Encoded
from dynolab.forces.function.derivatives import derivatives_of
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import Rule, find_rules
from dynolab.forces.function.weights import NamedTensors, Weights
from dynolab.forces.map.contraction import contract
from dynolab.forces.map.costs import factor_bytes, shapes_of, split_to_fit
from dynolab.forces.map.factors import Factors, token_factors, without_rule
from dynolab.forces.map.output_gradients import Tail, find_tail
from dynolab.forces.map.weighted import WeightedResponse

Tile = tuple[slice, slice]
"""Rows (observed tokens) and columns (updating tokens) of a part of the map."""

HEAD, EMBEDDING, TIED = "head", "embedding", "tied"

TOGETHER = 2**24
"""Bytes of one module's signals in a backward pass: responses share it up to this, because larger
operations use the cores better."""

MOST_PADDED = 1.25
"""How much more work padding may make of responses that share a backward pass."""


@dataclass(frozen=True)
class TokenGradients:
    """Where gradients are taken, in which parameters, and in which metric P.

    `rules` cover the parameters that have factors, `tail` marks where their signals stay at one
    position; gradients of `generic` parameters are computed in full.
    """

    policy: PolicyFunction
    at: NamedTensors
    moving: frozenset[str]
    scale: NamedTensors | None
    rules: list[Rule]
    tail: Tail | None
    generic: frozenset[str]

    @classmethod
    def build(
        cls,
        policy: PolicyFunction,
        at: Weights | None,
        moving: set[str],
        scale: Weights | None,
        sample: Encoded,
    ) -> TokenGradients:
        """Finds the parameters' rules, and checks them against autograd on one response."""
        derivatives_of(policy).require("backward")
        trial = WeightedResponse.own(sample, policy)
        place = {**policy.weights, **({} if at is None else policy.cast(at))}
        cast = None if scale is None else policy.cast(scale)
        plain = find_rules(policy, moving)
        rules, tail = find_tail(policy, place, plain, trial)
        generic = without_rule(policy, place, rules, tail, moving, trial)
        if generic and tail is not None:
            rules, tail = plain, None
            generic = without_rule(policy, place, rules, tail, moving, trial)
        return cls(policy, place, frozenset(moving), cast, rules, tail, frozenset(generic))

    def factors(self, responses: Sequence[WeightedResponse]) -> list[Factors]:
        """Per-token gradients of every response's scores as factors."""
        factors: dict[int, Factors] = {}
        for numbers in self._together(responses):
            group = [responses[number] for number in numbers]
            group_factors = token_factors(
                self.policy, self.at, self.rules, self.tail, set(self.generic), group
            )
            factors |= zip(numbers, group_factors, strict=True)
        return [factors[number] for number in range(len(responses))]

    def _together(self, responses: Sequence[WeightedResponse]) -> Iterator[list[int]]:
        """Responses that share a backward pass: alike in length, and few enough (`TOGETHER`)."""
        item = torch.finfo(self.policy.dtype).bits // 8
        # Signals start at the head's input, so its outputs do not count.
        widest = item * max(rule.sizes[0 if rule.head else 1] for rule in self.rules)

        def kind(number: int) -> tuple[float, int, int, int]:
            response = responses[number]
            tokens, targets = response.targets.shape
            return response.temperature, targets, tokens, len(response.sequence.ids)

        group: list[int] = []
        for number in sorted(range(len(responses)), key=kind):
            cells = [tokens * length for *_, tokens, length in map(kind, [*group, number])]
            padded = len(cells) * max(cells)
            alike = not group or kind(group[0])[:2] == kind(number)[:2]
            if group and not (
                alike and padded <= MOST_PADDED * sum(cells) and padded * widest <= TOGETHER
            ):
                yield group
                group = []
            group.append(number)
        if group:
            yield group

    def bytes_of(self, sequence: Encoded) -> int:
        """Bytes of a sequence's factors."""
        (shape,) = shapes_of([sequence])
        item = torch.finfo(self.policy.dtype).bits // 8
        generic_numbers = sum(self.at[name].numel() for name in self.generic)
        return (
            factor_bytes(self.rules, shape, item)
            + sequence.response_length * generic_numbers * item
        )


@dataclass(frozen=True)
class Blocks:
    """`embedding`, `attention.q`, `.k`, `.v`, `.o` (`.qkv` where one matrix makes all three),
    `mlp`, `norms`, `head`, `tied`, and `other` for unrecognised names.

    `tied` is the product of a shared table's use as embedding with its use as head.
    """

    names: tuple[str, ...]
    block_of: dict[tuple[str, str], str]

    @classmethod
    def of(cls, gradients: TokenGradients) -> Blocks:
        """The blocks of the parameters that move."""
        heads = {rule.weight for rule in gradients.rules if rule.head}
        embeddings = {rule.weight for rule in gradients.rules if rule.kind == "embedding"}
        norm_rules = [rule for rule in gradients.rules if rule.kind == "norm"]
        norms = set(chain.from_iterable(rule.names for rule in norm_rules))
        block_of = {}
        for name in gradients.moving:
            block = "norms" if name in norms else block_by_name(name, name in embeddings)
            block_of[name, "own"] = HEAD if name in heads - embeddings else block
            if name in heads & embeddings - gradients.generic:
                block_of |= {(name, HEAD): HEAD, (name, TIED): TIED}
        return cls(tuple(sorted(set(block_of.values()))), block_of)

    def number(self, name: str, use: str) -> int:
        """The place in `names` of a parameter's use (`contraction.Into`)."""
        return self.names.index(self.block_of[name, use])


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


@dataclass(frozen=True)
class Side:
    """Responses of one side, in groups that each fit into the memory."""

    groups: list[list[WeightedResponse]]

    @property
    def slices(self) -> list[slice]:
        """The tokens of each group among all tokens of the side."""
        slices, start = [], 0
        for group in self.groups:
            stop = start + sum(len(response.weights) for response in group)
            slices.append(slice(start, stop))
            start = stop
        return slices


def plan_tiles(
    gradients: TokenGradients,
    observed: Sequence[WeightedResponse],
    updating: Sequence[WeightedResponse],
    memory: int,
) -> tuple[Side, Side]:
    """Groups of both sides: three quarters of the memory hold factors, a quarter is workspace.

    A response whose factors take more than an eighth is split into spans. A side that needs less
    than half of the factors' memory leaves the rest to the other.
    """
    room = 3 * memory // 4
    spans: list[list[WeightedResponse]] = []
    sizes = []
    for side in (observed, updating):
        parts = [split_to_fit(gradients.bytes_of, response, memory // 8) for response in side]
        spans.append(list(chain.from_iterable(parts)))
        sizes.append([gradients.bytes_of(span.sequence) for span in spans[-1]])
    observed_room = max(room // 2, room - sum(sizes[1]))
    updating_room = max(room // 2, room - sum(sizes[0]))
    return (
        Side(list(in_groups(spans[0], sizes[0], observed_room))),
        Side(list(in_groups(spans[1], sizes[1], updating_room))),
    )


def gram_tiles(
    gradients: TokenGradients,
    observed: Side,
    updating: Side,
    *,
    is_missing: Callable[[Tile], bool],
    workspace: int,
    blocks: int,
    number: Callable[[str, str], int],
) -> Iterator[tuple[Tile, Float[Tensor, "blocks rows columns"]]]:
    """Yields the wanted tiles of the map of inner products, in parts that add up to it.

    What a parameter's use gives is added to its `number` of the `blocks`.
    """
    policy = gradients.policy
    for tile, left, right in factor_tiles(gradients, observed, updating, is_missing=is_missing):
        shape = (blocks, *(side.stop - side.start for side in tile))
        out = torch.zeros(shape, dtype=policy.dtype, device=policy.device)

        def into(
            name: str, use: str, out: Float[Tensor, "blocks observed updating"] = out
        ) -> Float[Tensor, "observed updating"]:
            return out[number(name, use)]

        contract(left, right, into, scale=gradients.scale, workspace=workspace)
        del left, right  # else these are held while the next ones are made
        yield tile, out


def factor_tiles(
    gradients: TokenGradients, observed: Side, updating: Side, *, is_missing: Callable[[Tile], bool]
) -> Iterator[tuple[Tile, list[Factors], list[Factors]]]:
    """Yields factors by tile; an updating group's are kept for all observed groups.

    At most one group of each side is held here at a time.
    """
    only = gradients.factors(observed.groups[0]) if len(observed.groups) == 1 else None
    for columns, updates in zip(updating.slices, updating.groups, strict=True):
        todo = [n for n, rows in enumerate(observed.slices) if is_missing((rows, columns))]
        right = gradients.factors(updates) if todo else []
        for n in todo:
            left = only or gradients.factors(observed.groups[n])
            yield (observed.slices[n], columns), left, right
            del left
        del right
