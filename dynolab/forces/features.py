"""Hidden layers: what an update does to features, and how each example pulls on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.errors import ConfigError
from dynolab.forces.function.layers import Reached, at_layer
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import Weights
from dynolab.forces.step.one_step import OneStep, change_of, midpoint
from dynolab.forces.step.split import objective_batch, step_totals
from dynolab.objectives import Objective, read_logps
from dynolab.objectives.base import force
from dynolab.training.step_record import Recorded


def hidden_states(
    policy: PolicyFunction, weights: Weights, batch: TokenBatch, layer: int
) -> Float[Tensor, "tokens width"]:
    """h_ℓ at the position that predicts each response token.

    **Arguments:** `layer`: ℓ, the blocks already run: 0 is the first block's input; the number of
    blocks, or −1, is the last block's output before the final norm.
    """

    def stop(hidden: Tensor) -> Tensor:
        raise Reached(hidden)

    with at_layer(policy, layer, stop):
        try:
            policy.logits(weights, batch)
        except Reached as reached:
            return reached.hidden[batch.sequence, batch.position]
    raise ConfigError(
        "layer", layer, "the forward pass did not reach it; give a model that runs all its blocks"
    )


@dataclass(frozen=True)
class FeatureStep(OneStep):
    """`OneStep` of h_ℓ, and `start`: h_ℓ before the change."""

    start: Float[Tensor, "tokens width"]


def feature_step(
    policy: PolicyFunction,
    before: Weights,
    after: Weights,
    batch: TokenBatch,
    layer: int,
    *,
    at: Weights | None = None,
) -> FeatureStep:
    """Measured and first-order change of h_ℓ at every response position: `one_step` for features.

    Prediction: `Δh = ∂h/∂θ · (after − before)`, at the midpoint unless `at` gives other weights.
    The residual is O(η²) at `before` and O(η³) at the midpoint. Parameters above the layer have
    no effect.
    """
    place = midpoint(before, after) if at is None else at
    (predicted,) = policy.derivatives(
        lambda weights: hidden_states(policy, weights, batch, layer),
        place,
        [change_of(before, after)],
    )
    start, end = (
        hidden_states(policy, policy.cast(weights), batch, layer) for weights in (before, after)
    )
    return FeatureStep(measured=end - start, predicted=predicted, start=start)


@dataclass(frozen=True)
class FeatureForce:
    """The force of one example of a step on the features: `(∇_h z)ᵀ G`.

    `cotangent` is ∂L/∂h_ℓ at every position of the example's sequences (chosen, then rejected; zero
    on padding); the step moves h against it.
    """

    id: str
    cotangent: Float[Tensor, "sequences length width"]

    @property
    def total(self) -> Float[Tensor, " width"]:
        """The cotangent's sum over positions: the pull on a shift common to all of them."""
        return self.cotangent.sum((0, 1))


def feature_forces(
    policy: PolicyFunction,
    examples: Sequence[Recorded],
    objective: Objective,
    layer: int,
    *,
    at: Weights | None = None,
    step: Sequence[Recorded] | None = None,
) -> list[FeatureForce]:
    """Each example's force on the features, by one VJP through the layers above h_ℓ.

    **Arguments:**

    - `at`: the weights; default: the policy's own.
    - `step`: all examples of the step, whose number, tokens and sequences the objective divides
      by; default: `examples`.
    """
    if not examples:
        raise ConfigError("examples", [], "give at least one example of the step")
    weights, totals = policy.cast(at or {}), step_totals(step or examples, objective)
    forces = []
    for example in examples:
        batch = objective_batch([example], objective, totals, policy)
        logits, hidden = _above(policy, weights, batch, layer)
        plain = logits.detach()
        token_weights = objective.token_weights(read_logps(objective, plain, batch), batch)
        pull = force(token_weights, plain, batch)
        (cotangent,) = torch.autograd.grad(logits, hidden, pull)
        forces.append(FeatureForce(example.id, cotangent))
    return forces


def _above(
    policy: PolicyFunction, weights: Weights, batch: TokenBatch, layer: int
) -> tuple[Float[Tensor, "tokens vocabulary"], Float[Tensor, "sequences length width"]]:
    """A batch's logits as a function of h_ℓ, and h_ℓ."""
    seen: list[Tensor] = []

    def cut(hidden: Tensor) -> Tensor:
        seen.append(hidden.detach().requires_grad_())
        return seen[0]

    with torch.enable_grad(), at_layer(policy, layer, cut):
        return policy.logits(weights, batch), seen[0]


@dataclass(frozen=True)
class Consistency:
    """Whether forces point in one direction, regardless of their sizes.

    `resultant`: `‖Σ_n f_n/‖f_n‖‖ / N`, 1 for one direction, about 1/√N for unrelated ones.
    `mean_cosine`: over all pairs of different examples, 0 for unrelated ones. Energy without
    either is an energy–direction mismatch: features are pushed, but in no common direction.
    """

    resultant: float
    mean_cosine: float
    examples: int


def consistency(forces: Float[Tensor, "examples width"]) -> Consistency:
    """Cosine consistency of per-example forces, such as `FeatureForce.total`, stacked.

    With unit vectors u_n, `Σ_{n≠m} u_n·u_m = ‖Σ u_n‖² − N`. Forces of size zero have no
    direction and do not count.

    **Raises:** `ConfigError` if fewer than two forces are nonzero.
    """
    sizes = forces.double().norm(dim=-1, keepdim=True)
    units = (forces.double() / sizes)[sizes.squeeze(-1) > 0]
    count = len(units)
    if count < 2:
        raise ConfigError("forces", f"{count} nonzero", "give at least two examples with a force")
    square = float(units.sum(0).square().sum())
    return Consistency(
        resultant=square**0.5 / count,
        mean_cosine=(square - count) / (count * (count - 1)),
        examples=count,
    )
