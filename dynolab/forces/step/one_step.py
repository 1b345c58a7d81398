"""What one change of the weights does to log π: measured, and predicted to two orders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp

from dynolab.data.batches import TokenBatch
from dynolab.forces.function.checks import check_arithmetic, check_batch
from dynolab.forces.function.derivatives import derivatives_of
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.views import View, twice_differentiable
from dynolab.forces.function.weights import NamedTensors, Weights

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


def change_of(before: Weights, after: Weights) -> NamedTensors:
    """The realised change d = after − before, including momentum, clipping and decay."""
    return {name: after[name] - before[name] for name in before}


def midpoint(before: Weights, after: Weights) -> NamedTensors:
    """(before + after)/2."""
    return {name: torch.lerp(before[name], after[name], 0.5) for name in before}


def norm_of(tensors: Iterable[Float[Tensor, " ..."]]) -> Float[Tensor, ""]:
    """Frobenius norm over all tensors, accumulated in float64; they may be made one by one."""
    return torch.stack([tensor.double().square().sum() for tensor in tensors]).sum().sqrt()


@dataclass(frozen=True)
class SecondOrder:
    """The second order of a change of the weights: what bends log π away from first order.

    Along s times a change d, with logits z, `ż = ∂z/∂θ · d` and `z̈ = d · ∂²z/∂θ² · d`,

        Δ log π_v(s) = s (A ż)_v + s²/2 [(A z̈)_v − Var_π(ż)] + O(s³),    A = I − 1πᵀ.

    `(A z̈)/2` is there because the network's Jacobian changes, and with it the kernel K;
    `−Var_π(ż)/2` because the prediction π in A changes. The latter is never positive: it lowers
    every answer. Here are z, ż and z̈ of every response token, and what follows for the view's
    tokens, in nats.
    """

    view: View
    logits: Float[Tensor, "tokens vocabulary"]
    moved: Float[Tensor, "tokens vocabulary"]
    bent: Float[Tensor, "tokens vocabulary"]

    @property
    def first(self) -> Float[Tensor, "tokens k"]:
        """`A ż`."""
        return self.view.changes(self.logits, self.moved)

    @property
    def jacobian(self) -> Float[Tensor, "tokens k"]:
        """`A z̈/2`."""
        return self.view.changes(self.logits, self.bent) / 2

    @property
    def softmax(self) -> Float[Tensor, "tokens k"]:
        """`−Var_π(ż)/2`."""
        probability = torch.softmax(self.logits, -1)
        mean = (probability * self.moved).sum(-1, keepdim=True)
        variance = (probability * (self.moved - mean).square()).sum(-1, keepdim=True)
        return (-variance / 2).expand_as(self.first)

    @property
    def with_straight_logits(self) -> Float[Tensor, "tokens k"]:
        """Δ log π where logits move by ż alone, with the softmax exact."""
        return self.view.logps(self.logits + self.moved) - self.view.logps(self.logits)

    def change(self, s: float) -> Float[Tensor, "tokens k"]:
        """Δ log π after s times the change, with logits to second order and the softmax exact."""
        after = self.logits + s * self.moved + s**2 / 2 * self.bent
        return self.view.logps(after) - self.view.logps(self.logits)


@torch.enable_grad()  # torch's rules for activations can be differentiated again only then
def second_order(
    policy: PolicyFunction, at: Weights, change: Weights, batch: TokenBatch, view: View
) -> SecondOrder:
    """Both orders by a forward-mode derivative of a forward-mode derivative.

    Linear layers cost 8 products in place of the first order's 3.

    **Arguments:** `at`: the weights before the change; `change`: d; `batch`: responses, at whose
    temperature log π is taken; `view`: the tokens observed at every response position.

    **Returns:** z, ż and z̈, and from them the terms of Δ log π in nats.

    **Raises:** `ConfigError` for a model whose second derivatives are not those of its forward.
    """
    check_batch(batch, policy.causal)
    derivatives_of(policy).require("second")
    place, d = policy.cast(at), policy.cast(change)
    primal = {name: place[name] for name in d}

    def along(
        weights: Weights,
    ) -> tuple[Float[Tensor, "tokens vocabulary"], Float[Tensor, "tokens vocabulary"]]:
        return _value_and_derivative(policy, {**place, **weights}, d, batch)

    (value, moved), (_, bent) = jvp(along, (primal,), (d,))[:2]
    return SecondOrder(view, value, moved, bent)


def _value_and_derivative(
    policy: PolicyFunction, at: Weights, change: Weights, batch: TokenBatch
) -> tuple[Float[Tensor, "tokens vocabulary"], Float[Tensor, "tokens vocabulary"]]:
    """Logits at the batch's temperature, and ż; both can be differentiated again."""

    def logits(moving: Weights) -> Float[Tensor, "tokens vocabulary"]:
        with twice_differentiable():
            return policy.logits({**at, **moving}, batch) / batch.temperature

    value, moved = jvp(logits, ({name: at[name] for name in change},), (change,))[:2]
    return value, moved
