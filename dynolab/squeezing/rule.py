"""One gradient step on the logits of one softmax: exactly, and to first order.

`L = −s log p_y` has `∂L/∂z = s (p − e_y)`, so a step on it is `z' = z + s (e_y − p)`: s = η > 0
pulls class y up, s = −η < 0 pushes it down (Ren & Sutherland, arXiv 2407.10490, §3.3 and
appendix E).

If all contexts share one head `z_n = W h_n` on features h: with the head alone (fixed features) a
step at context u gives `Δz_o = s (h_o·h_u)(e_y − p_u)` at context o; with features free as well
(the unconstrained features model), at the updated context itself
`Δz = s (‖h‖² I + W Wᵀ)(e_y − p) + s² (e_y − p) ((e_y − p)ᵀ W h)`.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Step = float | Float[Tensor, "*batch"]


def stepped(
    logp: Float[Tensor, "*batch classes"], label: Int[Tensor, "*batch"], step: Step
) -> Float[Tensor, "*batch classes"]:
    """log p after one step on the logits, `log softmax(z + s (e_y − p))`.

    **Arguments:**

    - `logp`: log-probabilities before, in nats (logits shifted to `log Σ exp z = 0`).
    - `label`: the class y of every row.
    - `step`: s, one for all rows or one for each; below zero pushes y down.
    """
    return (logp + _as_column(step) * force_of(logp, label)).log_softmax(-1)


def force_of(
    logp: Float[Tensor, "*batch classes"], label: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch classes"]:
    """`e_y − p`, the direction of a step on the logits: the negative gradient of −log p_y."""
    force = -logp.exp()
    return force.scatter_add(-1, label.unsqueeze(-1), torch.ones_like(force[..., :1]))


def first_order(
    logp: Float[Tensor, "*batch classes"], label: Int[Tensor, "*batch"], step: Step
) -> Float[Tensor, "*batch classes"]:
    """`Δ log p_i = s ([i = y] − p_i − p_y + Σ_j p_j²) + O(s²)`, in nats.

    `A (e_y − p)` with `A = I − 1pᵀ` = ∂ log p/∂z.
    """
    p = logp.exp()
    chosen = p.gather(-1, label.unsqueeze(-1))
    change = p.square().sum(-1, keepdim=True) - chosen - p
    change.scatter_add_(-1, label.unsqueeze(-1), torch.ones_like(chosen))
    return _as_column(step) * change


def logp_change(
    logp: Float[Tensor, "*batch classes"], moved: Float[Tensor, "*batch classes"]
) -> Float[Tensor, "*batch classes"]:
    """`Δ log p = A dz + O(dz²)`, in nats, for logits that move by dz: `A = I − 1pᵀ`."""
    return moved - (logp.exp() * moved).sum(-1, keepdim=True)


def rises(
    logp: Float[Tensor, "*batch classes"], label: Int[Tensor, "*batch"]
) -> Bool[Tensor, "*batch classes"]:
    """Which classes an infinitely small push on y raises: `p_i + p_y > Σ_j p_j²`, and i ≠ y.

    The sign of `first_order` for a negative step; y itself always falls.
    """
    p = logp.exp()
    raised = p + p.gather(-1, label.unsqueeze(-1)) > p.square().sum(-1, keepdim=True)
    return raised.scatter(-1, label.unsqueeze(-1), False)


def likeliest_other(
    logp: Float[Tensor, "*batch classes"], label: Int[Tensor, "*batch"]
) -> Int[Tensor, "*batch"]:
    """i* = argmax_{i≠y} p_i, the class that every push on y raises."""
    return logp.scatter(-1, label.unsqueeze(-1), -torch.inf).argmax(-1)


def stepped_elsewhere(
    observed: Float[Tensor, "*batch classes"],
    updated: Float[Tensor, "*batch classes"],
    label: Int[Tensor, "*batch"],
    step: Step,
) -> Float[Tensor, "*batch classes"]:
    """log p of an observed context after a step of the head on another one.

    **Arguments:** `step`: s h_o·h_u; below zero pushes the label down where both features agree.

    Below zero, the label falls at the observed context too, and the class that is likeliest *at the
    updated context* rises, at any size of step: their logits move least and most of all.
    """
    return (observed + _as_column(step) * force_of(updated, label)).log_softmax(-1)


def stepped_with_features(
    head: Float[Tensor, "*batch classes features"],
    feature: Float[Tensor, "*batch features"],
    label: Int[Tensor, "*batch"],
    step: Step,
) -> Float[Tensor, "*batch classes"]:
    """log p after one gradient step of size s on head and feature together."""
    logits = torch.einsum("...cf,...f->...c", head, feature)
    force = _as_column(step) * force_of(logits.log_softmax(-1), label)
    moved_head = head + force.unsqueeze(-1) * feature.unsqueeze(-2)
    moved_feature = feature + torch.einsum("...c,...cf->...f", force, head)
    return torch.einsum("...cf,...f->...c", moved_head, moved_feature).log_softmax(-1)


def _as_column(step: Step) -> float | Tensor:
    """The step with a last axis, to multiply all classes of its row."""
    return step.unsqueeze(-1) if isinstance(step, Tensor) and step.ndim else step
