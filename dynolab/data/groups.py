"""Groups: several sampled completions of one prompt, as batches for policy-gradient objectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch, TopTokens, Totals, collate
from dynolab.data.encode import Encoded


@dataclass(frozen=True)
class Completion:
    """One sampled response with the values that objectives read, per response token.

    `advantage` is the factor of each token's push; `old` and `reference` are log-probabilities in
    nats under the policy that sampled and under the reference, at the sampling temperature.
    `anchor` is the weight of each token's divergence from `old`; `dose` the factor on its push,
    where the step has chosen it.
    """

    encoded: Encoded
    advantage: Float[Tensor, " response"]
    old: Float[Tensor, " response"] | None = None
    reference: Float[Tensor, " response"] | None = None
    top: TopTokens | None = None
    anchor: Float[Tensor, " response"] | None = None
    dose: Float[Tensor, " response"] | None = None

    @property
    def side(self) -> int:
        """Chosen if the completion is pushed up, rejected if it is pushed down."""
        return REJECTED if bool((self.advantage < 0).any()) else CHOSEN


@dataclass(frozen=True)
class Group:
    """The completions of one prompt: one example of a batch."""

    id: str
    completions: tuple[Completion, ...]


def collate_groups(
    groups: Sequence[Group], pad_id: int, totals: Totals, *, temperature: float = 1.0
) -> TokenBatch:
    """Collates groups; the completions of a group are neighbours.

    A completion is on the chosen side if its advantage pushes it up and on the rejected side if it
    pushes it down, so that forces split into the two sides as they do for pairs.

    **Arguments:**

    - `totals`: those of the step: `count_group_totals` of its groups on all ranks.
    - `temperature`: that of the sampling; the policy's likelihoods are computed at it too.
    """
    completions = list(chain.from_iterable(group.completions for group in groups))
    batch = collate(
        [completion.encoded for completion in completions],
        pad_id,
        example=[number for number, group in enumerate(groups) for _ in group.completions],
        side=[completion.side for completion in completions],
        ids=[group.id for group in groups],
        totals=totals,
    )
    return replace(
        batch,
        advantage=torch.cat([completion.advantage for completion in completions]),
        old=_concatenate(completions, lambda completion: completion.old),
        reference=_concatenate(completions, lambda completion: completion.reference),
        anchor=_concatenate(completions, lambda completion: completion.anchor),
        dose=_concatenate(completions, lambda completion: completion.dose),
        top=_concatenate_top([completion.top for completion in completions]),
        temperature=temperature,
    )


def with_tokens(
    groups: Sequence[Group],
    field: Literal["advantage", "anchor", "dose"],
    values: Float[Tensor, " tokens"],
) -> list[Group]:
    """The groups with other values in a field of their completions' tokens."""
    changed, start = [], 0
    for group in groups:
        completions = []
        for completion in group.completions:
            stop = start + completion.encoded.response_length
            # A view would carry all values along.
            part: dict[str, Any] = {field: values[start:stop].clone()}
            completions.append(replace(completion, **part))
            start = stop
        changed.append(Group(group.id, tuple(completions)))
    return changed


def count_group_totals(groups: Sequence[Group]) -> Totals:
    """Global denominators of one optimizer step on these groups."""
    lengths = [
        completion.encoded.response_length for group in groups for completion in group.completions
    ]
    return Totals(examples=len(groups), tokens=sum(lengths), sequences=len(lengths))


def _concatenate(
    completions: Sequence[Completion], part: Callable[[Completion], Tensor | None]
) -> Tensor | None:
    """A per-token field of all completions, concatenated; None if any of them lacks it."""
    parts = [values for completion in completions if (values := part(completion)) is not None]
    return torch.cat(parts) if len(parts) == len(completions) else None


def _concatenate_top(tops: Sequence[TopTokens | None]) -> TopTokens | None:
    parts = [top for top in tops if top is not None]
    if len(parts) < len(tops):
        return None
    return TopTokens(
        torch.cat([top.token for top in parts]),
        torch.cat([top.logp for top in parts]),
        torch.cat([top.entropy for top in parts]),
    )
