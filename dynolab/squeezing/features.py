"""The step seen from other contexts, where all share one head `z_n = W h_n` on features h.

Head alone (the features are what they are): `Δz_o = s (h_o·h_u)(e_y − p_u)`. Features free as well
(the unconstrained features model): at the updated context itself
`Δz = s (‖h‖² I + W Wᵀ)(e_y − p) + s² (e_y − p) ((e_y − p)ᵀ W h)`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dynolab.squeezing.rule import Step, as_column, force_of


def stepped_elsewhere(
    observed: Float[Tensor, "*batch classes"],
    updated: Float[Tensor, "*batch classes"],
    label: Int[Tensor, "*batch"],
    step: Step,
) -> Float[Tensor, "*batch classes"]:
    """log p of an observed context after the head's step on another one.

    **Arguments:** `step`: s h_o·h_u; below zero pushes the label down where both features agree.

    Below zero the label falls there too, and the class that is likeliest *at the updated context*
    rises there too, at any size of step: of all logits theirs move least and most.
    """
    return (observed + as_column(step) * force_of(updated, label)).log_softmax(-1)


def stepped_with_features(
    head: Float[Tensor, "*batch classes features"],
    feature: Float[Tensor, "*batch features"],
    label: Int[Tensor, "*batch"],
    step: Step,
) -> Float[Tensor, "*batch classes"]:
    """log p after one gradient step of size s on head and feature together."""
    logits = torch.einsum("...cf,...f->...c", head, feature)
    force = as_column(step) * force_of(logits.log_softmax(-1), label)
    moved_head = head + force.unsqueeze(-1) * feature.unsqueeze(-2)
    moved_feature = feature + torch.einsum("...c,...cf->...f", force, head)
    return torch.einsum("...cf,...f->...c", moved_head, moved_feature).log_softmax(-1)
