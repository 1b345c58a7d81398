"""What one change of the weights does to log π: measured, and predicted to first order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.forces.function.checks import check_arithmetic, check_batch
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.views import View
from dynolab.forces.function.weights import Weights

DIFFERENCES = "differences of 16-bit log-probabilities are off by 12 to 80 % and more"


@dataclass(frozen=True)
class OneStep:
    """What one change of the weights does at every response position of a batch.

    For log π, in nats: a number at each position for the realised token, or for each token of a
    view. For hidden features (`feature_step`): a vector at each position.
    """

    measured: Float[Tensor, "tokens ..."]
    predicted: Float[Tensor, "tokens ..."]

    @property
    def residual(self) -> Float[Tensor, "tokens ..."]:
        """What the first order leaves unexplained, measured − predicted."""
        return self.measured - self.predicted


def one_step(
    policy: PolicyFunction,
    before: Weights,
    after: Weights,
    batch: TokenBatch,
    *,
    at: Weights | None = None,
    view: View | None = None,
) -> OneStep:
    """Measured and predicted change at every response position between two states.

    Prediction: `Δ log π = ∂ log π/∂θ · (after − before)`, the derivative taken at the midpoint
    unless `at` gives other weights. With d = O(η), the residual is O(η²) at `before` and O(η³)
    at the midpoint, where the second order cancels, at the same cost.

    **Arguments:** `view`: the tokens observed at every position; default: the realised one.
    """
    d = change_of(before, after)
    place = midpoint(before, after) if at is None else at
    return OneStep(
        measured=measured_change(policy, before, after, batch, view=view),
        predicted=policy.change_along(place, [d], batch, view=view)[0],
    )


@torch.no_grad()
def measured_change(
    policy: PolicyFunction,
    before: Weights,
    after: Weights,
    batch: TokenBatch,
    *,
    view: View | None = None,
) -> Float[Tensor, "tokens ..."]:
    """`log π_after − log π_before` at every response position, in nats."""
    check_arithmetic(policy.dtype, DIFFERENCES)
    check_batch(batch, policy.causal)
    start = policy.observed(policy.cast(before), batch, view)
    return policy.observed(policy.cast(after), batch, view) - start


def change_of(before: Weights, after: Weights) -> dict[str, Tensor]:
    """The realised change d = after − before, including momentum, clipping and decay."""
    return {name: after[name] - before[name] for name in before}


def midpoint(before: Weights, after: Weights) -> dict[str, Tensor]:
    """(before + after)/2."""
    return {name: torch.lerp(before[name], after[name], 0.5) for name in before}


def norm_of(tensors: Iterable[Tensor]) -> Float[Tensor, ""]:
    """Frobenius norm over all tensors, accumulated in float64; they may be made one by one."""
    return torch.stack([tensor.double().square().sum() for tensor in tensors]).sum().sqrt()
