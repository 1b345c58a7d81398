"""One gradient step on the logits of one softmax: exactly, and to first order.

`L = −s log p_y` has `∂L/∂z = s (p − e_y)`, so a step on it is `z' = z + s (e_y − p)`: s = η > 0
pulls class y up, s = −η < 0 pushes it down (Ren & Sutherland, arXiv 2407.10490, §3.3 and
appendix E).
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
    return (logp + as_column(step) * force_of(logp, label)).log_softmax(-1)


def force_of(
    logp: Float[Tensor, "*batch classes"], label: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch classes"]:
    """`e_y − p`, what a step pulls on the logits with: the negative gradient of −log p_y."""
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
    return as_column(step) * change


def answered(
    logp: Float[Tensor, "*batch classes"], moved: Float[Tensor, "*batch classes"]
) -> Float[Tensor, "*batch classes"]:
    """`Δ log p = A dz + O(dz²)`, in nats, of logits that move by dz: `A = I − 1pᵀ`."""
    return moved - (logp.exp() * moved).sum(-1, keepdim=True)


def rises(
    logp: Float[Tensor, "*batch classes"], label: Int[Tensor, "*batch"]
) -> Bool[Tensor, "*batch classes"]:
    """Which classes an infinitely small push on y raises: `p_i + p_y > Σ_j p_j²`, and i ≠ y.

    The sign of `first_order` below a step of zero; y itself always falls.
    """
    p = logp.exp()
    raised = p + p.gather(-1, label.unsqueeze(-1)) > p.square().sum(-1, keepdim=True)
    return raised.scatter(-1, label.unsqueeze(-1), False)


def likeliest_other(
    logp: Float[Tensor, "*batch classes"], label: Int[Tensor, "*batch"]
) -> Int[Tensor, "*batch"]:
    """i* = argmax_{i≠y} p_i, the class that every push on y raises."""
    return logp.scatter(-1, label.unsqueeze(-1), -torch.inf).argmax(-1)


def as_column(step: Step) -> float | Tensor:
    """A step for every row, made to multiply its classes."""
    return step.unsqueeze(-1) if isinstance(step, Tensor) and step.ndim else step
