"""What one step shows of the kernel between an answer and its batch: a bound, and LBK."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.forces.map.terms import TokenTerms


def kernel_lower_bound(
    change: Float[Tensor, " tokens"],
    observed: TokenTerms,
    updating: Sequence[TokenTerms],
    learning_rate: float,
) -> Float[Tensor, " tokens"]:
    """`|Δ log π_y| / (η ‖e_y − π_o‖ ‖G‖) ≤ ‖K‖₂`, one bound per observed token.

    From `Δ log π_m = −η Σ_l (e − π_m)ᵀ K_{m,l} G_l` and Cauchy–Schwarz, with ‖G‖ over all
    updating tokens and K the row of blocks [K_{m,1} … K_{m,L}]. It holds for the first-order
    change of one gradient step; for a measured change up to the step's residual, and under clip
    factor, momentum or an adaptive optimizer only if K includes them.

    **Arguments:**

    - `change`: Δ log π of one response's tokens, in nats.
    - `observed`, `updating`: terms before the step, of that response and of all that the step
      trained on (`response_terms`, `step_terms`).
    - `learning_rate`: η of the step.
    """
    g = torch.cat([terms.g_norm for terms in updating]).norm()
    size = learning_rate * observed.force_size * g
    # Without a force the bound is zero.
    return torch.where(size > 0, change.abs() / size, torch.zeros_like(size))


def paper_influence(
    change: Float[Tensor, " tokens"], observed: TokenTerms, updating: Sequence[TokenTerms]
) -> tuple[float, float]:
    """LBK `‖Δ log π‖₂/(√‖A‖·‖p−e‖)` and SignDelta `mean(Δ)/(√‖A‖·‖p−e‖)` of one step.

    Ren & Sutherland (arXiv 2407.10490), under their names. The source leaves two choices open:
    here ‖A‖ is the mean over the answer's tokens of the exact ‖A‖_F, ‖p−e‖ the mean over the
    updating tokens of ‖π − e_y‖. Neither bounds anything as written: ‖A‖ belongs to all the
    logits' change and is under a root, η is missing, and norms are means over tokens.
    `kernel_lower_bound` is a bound.

    **Arguments:**

    - `change`: Δ log π of the answer's tokens over the step, in nats.
    - `observed`: terms of the answer before the step.
    - `updating`: terms of all responses that the step trained on.

    **Returns:** LBK and SignDelta; `moving_average` of the latter, summed, is the authors'
    accumulated influence.
    """
    pull = torch.cat([terms.force_size for terms in updating]).mean()
    size = observed.a_frobenius.mean().sqrt() * pull
    return float(change.norm() / size), float(change.mean() / size)


def moving_average(values: Float[Tensor, " steps"], decay: float = 0.9) -> Float[Tensor, " steps"]:
    """`a_t = decay · a_{t−1} + (1 − decay) · v_t`, from a_0 = v_0."""
    averages = accumulate(values, lambda a, v: decay * a + (1 - decay) * v)
    return torch.stack(list(averages))
