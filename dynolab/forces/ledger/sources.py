"""Measures of a step as papers define them: a lower bound on ‖K‖₂, LBK and SignDelta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.forces.map.terms import TokenTerms
from dynolab.training.step_record import StepRecord


def kernel_lower_bound(
    change: Float[Tensor, " tokens"],
    observed: TokenTerms,
    updating: Sequence[TokenTerms],
    learning_rate: float,
) -> Float[Tensor, " tokens"]:
    """`|Δ log π_y| / (η ‖e_y − π_o‖ ‖G‖) ≤ ‖K‖₂`, one bound per observed token.

    From `Δ log π_m = −η Σ_l (e − π_m)ᵀ K_{m,l} G_l` and Cauchy–Schwarz, with ‖G‖ over all
    updating tokens and K the row of blocks [K_{m,1} … K_{m,L}]. It holds for the first-order
    change of one gradient step, and for a measured change up to the step's residual. A clip factor
    belongs in η, an adaptive optimizer's preconditioner in K. Momentum and weight decay change
    log π without G: under them nothing is bounded.

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

    **Returns:** LBK and SignDelta.
    """
    pull = torch.cat([terms.force_size for terms in updating]).mean()
    size = observed.a_frobenius.mean().sqrt() * pull
    return float(change.norm() / size), float(change.mean() / size)


@dataclass(frozen=True)
class SourceMeasures:
    """What the papers' measures say of one step and one answer.

    `lbk`, `sign_delta`: as Ren & Sutherland compute them (`paper_influence`); neither bounds
    anything as written. `kernel_bound`: the largest `kernel_lower_bound` of the answer's tokens, of
    the measured change. It bounds ‖K‖₂ between the answer's tokens and the step's from below where
    the step is SGD without momentum and weight decay, up to the step's residual.
    """

    step: int
    functional: str
    lbk: float
    sign_delta: float
    kernel_bound: float


def source_measures(
    record: StepRecord,
    name: str,
    before: TokenTerms,
    after: TokenTerms,
    updating: Sequence[TokenTerms],
) -> SourceMeasures:
    """A step's measures on the answer of this name, by its terms at both ends of the step."""
    change = after.logp - before.logp
    lbk, sign_delta = paper_influence(change, before, updating)
    rate = record.facts.learning_rate * record.facts.clip_factor
    bound = kernel_lower_bound(change, before, updating, rate)
    return SourceMeasures(record.facts.step, name, lbk, sign_delta, float(bound.max()))
