"""The last-layer picture: what a step does where the head alone moves and features stand still."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.forces.function.layers import at_head
from dynolab.forces.function.logit_function import Weights
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import head_module
from dynolab.forces.step.one_step import change_of


@torch.no_grad()
def moved_by_head(
    policy: PolicyFunction, before: Weights, after: Weights, batch: TokenBatch
) -> Float[Tensor, "tokens vocabulary"]:
    """Logits where the head alone has made a step: of its output `W h + b + ΔW h + Δb`.

    h are the features before the step, so this is the unconstrained-features model of it. After a
    gradient step its first order is the sum of `Breakdown.head` over the updating tokens, unless
    head and embedding share one table: ΔW then holds what the embedding's gradient moved, too.
    Where the head does not move, as under adapters, nothing does.
    """
    weight, bias = _change_of_head(policy, before, after)

    def moved(features: Tensor, output: Tensor) -> Tensor:
        if weight is not None:
            output = output + features @ weight.T
        return output if bias is None else output + bias

    with at_head(policy, moved):
        return policy.logits(policy.cast(before), batch)


def _change_of_head(
    policy: PolicyFunction, before: Weights, after: Weights
) -> tuple[Tensor | None, Tensor | None]:
    """Change of the head's weight and bias; None of what does not move."""
    head = head_module(policy.causal)
    names = {id(parameter): name for name, parameter in policy.model.named_parameters()}
    own = [names.get(id(getattr(head, part, None))) for part in ("weight", "bias")]
    known = {
        name: weights
        for name in own
        if name is not None and name in before
        for weights in [before[name]]
    }
    change = policy.cast(change_of(known, after))
    weight, bias = (change.get(name) if name else None for name in own)
    return weight, bias
