"""The last-layer picture: what a step does where the head alone moves and features stand still."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.forces.one_step import change_of
from dynolab.forces.policy import PolicyFunction, Weights
from dynolab.forces.rules import head_module


@torch.no_grad()
def moved_by_head(
    policy: PolicyFunction, before: Weights, after: Weights, batch: TokenBatch
) -> Float[Tensor, "tokens vocabulary"]:
    """Logits before a step plus what the head's own change adds to them: `z + ΔW h + Δb`.

    h are the features before the step, so this is the unconstrained-features model of it. After a
    gradient step its first order is the sum of `Breakdown.head` over the updating tokens, unless
    head and embedding share one table: ΔW then holds what the embedding's gradient moved, too.
    Where the head does not move, as under adapters, nothing does.
    """
    head = head_module(policy.causal)
    seen: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    try:
        logits = policy.logits(policy.cast(before), batch)
    finally:
        handle.remove()
    weight, bias = _change_of_head(policy, before, after)
    if weight is not None:
        logits = logits + seen[-1] @ weight.T
    return logits if bias is None else logits + bias


def _change_of_head(
    policy: PolicyFunction, before: Weights, after: Weights
) -> tuple[Tensor | None, Tensor | None]:
    """Change of the head's weight and bias; None of what does not move."""
    head = head_module(policy.causal)
    names = {id(parameter): name for name, parameter in policy.model.named_parameters()}
    own = [names.get(id(getattr(head, part, None))) for part in ("weight", "bias")]
    known = {name: weights for name in own if name is not None and name in before
             for weights in [before[name]]}  # fmt: skip
    change = policy.cast(change_of(known, after))
    weight, bias = (change.get(name) if name else None for name in own)
    return weight, bias
