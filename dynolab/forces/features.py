"""Hidden layers: what an update does to features, and how each example pulls on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch, Totals
from dynolab.errors import ConfigError
from dynolab.forces.function.layers import Reached, at_layer
from dynolab.forces.function.logit_function import Weights
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import subspace
from dynolab.forces.map.terms import TokenTerms, trained_terms
from dynolab.forces.step.one_step import change_of, midpoint
from dynolab.forces.step.optimizers import FrozenUpdate
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


def feature_change_along(
    policy: PolicyFunction,
    at: Weights,
    directions: Iterable[Weights],
    batch: TokenBatch,
    layer: int,
) -> Float[Tensor, "directions tokens width"]:
    """`∂h_ℓ/∂θ · d` at every response position for each direction d (forward-mode JVP)."""
    return policy.derivatives(
        lambda weights: hidden_states(policy, weights, batch, layer), at, directions
    )


@dataclass(frozen=True)
class FeatureStep:
    """Δh_ℓ at every response position of a batch over one change of the weights."""

    measured: Float[Tensor, "tokens width"]
    predicted: Float[Tensor, "tokens width"]

    @property
    def residual(self) -> Float[Tensor, "tokens width"]:
        """What the first order leaves unexplained, measured − predicted."""
        return self.measured - self.predicted


def feature_step(
    policy: PolicyFunction,
    before: Weights,
    after: Weights,
    batch: TokenBatch,
    layer: int,
    *,
    at: Weights | None = None,
) -> FeatureStep:
    """Measured and first-order change of the features between two states: `one_step` for h_ℓ.

    Prediction: `Δh = ∂h/∂θ · (after − before)`, at the midpoint unless `at` gives other weights.
    The residual is O(η²) at `before` and O(η³) at the midpoint. Parameters above the layer have
    no effect.
    """
    place = midpoint(before, after) if at is None else at
    (predicted,) = feature_change_along(policy, place, [change_of(before, after)], batch, layer)
    start, end = (
        hidden_states(policy, policy.cast(weights), batch, layer) for weights in (before, after)
    )
    return FeatureStep(measured=end - start, predicted=predicted)


@dataclass(frozen=True)
class FeatureForce:
    """The force of one example of a step on the features: `(∇_h z)ᵀ G`.

    `terms` holds its energy, token by token. `cotangent` is ∂L/∂h_ℓ at every position of the
    example's sequences (chosen, then rejected; zero on padding); the step moves h against it.
    """

    id: str
    terms: TokenTerms
    cotangent: Float[Tensor, "sequences length width"]

    @property
    def energy(self) -> Float[Tensor, ""]:
        """`‖G‖` over all the example's tokens."""
        return self.terms.g_norm.norm()

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
) -> list[FeatureForce]:
    """Each example's force on the features, by one VJP through the layers above h_ℓ.

    The examples are one step's batch: the objective's denominators count them all.

    **Arguments:** `at`: the weights; default: the policy's own.
    """
    weights, totals = policy.cast(at or {}), _totals(examples, objective)
    return [
        _pull(policy, weights, {}, example, objective, totals, layer).force for example in examples
    ]


@dataclass(frozen=True)
class FeatureChange:
    """First-order Δh_ℓ of observed positions under one gradient step, example by example.

    `by_example` is the formula of `feature_change`. `shared` is the contribution of parameters used
    on both sides of the layer (an embedding table tied to the head): the part of their gradient
    from above the layer moves the features too. It is zero without such parameters.
    """

    by_example: Float[Tensor, "examples tokens width"]
    shared: Float[Tensor, "tokens width"]

    @property
    def total(self) -> Float[Tensor, "tokens width"]:
        """The whole step's Δh."""
        return self.by_example.sum(0) + self.shared


def feature_change(
    policy: PolicyFunction,
    observed: TokenBatch,
    examples: Sequence[Recorded],
    objective: Objective,
    layer: int,
    *,
    update: float | FrozenUpdate = 1.0,
    at: Weights | None = None,
) -> FeatureChange:
    """`Δh_o = −η Σ_n K(o, n) (∇_h z_n)ᵀ G_n` with `K = J_h(o) P J_h(n)ᵀ`, exact to rounding.

    Thesis of Ren (arXiv 2509.19554, ch. 6): K, over the parameters below the layer, changes
    slowly, ∇_h z is the direction, G_n the energy, with the batch's mean inside G's c. For each
    example one VJP from its logits to h_ℓ, one on to the weights, and one JVP to the observed
    positions; no K is formed.

    **Arguments:**

    - `observed`: responses whose features are watched (`policy.batch`).
    - `examples`: the step's batch; the objective's denominators count them all.
    - `update`: a learning rate η (P = 1), or the frozen map of a recorded step without its
      history (`split_step`).
    - `at`: the weights; default: the policy's own.
    """
    place, totals = policy.cast(at or {}), _totals(examples, objective)
    wanted = set(update.scale) if isinstance(update, FrozenUpdate) else subspace(policy)
    above: dict[str, Tensor] = {}

    def weight_changes() -> Iterator[Weights]:
        for example in examples:
            pull = _pull(policy, place, wanted, example, objective, totals, layer)
            for name, gradient in pull.above.items():
                above[name] = above[name] + gradient if name in above else gradient
            yield _step(update, pull.below)
        if above:
            yield _step(update, above)

    rows = feature_change_along(policy, place, weight_changes(), observed, layer)
    by_example = rows[: len(examples)]
    return FeatureChange(by_example, rows[-1] if above else torch.zeros_like(rows[0]))


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


@dataclass(frozen=True)
class _Pull:
    """An example's force on h_ℓ, its gradient through h_ℓ, and shared parameters' from above it."""

    force: FeatureForce
    below: dict[str, Tensor]
    above: dict[str, Tensor]


def _pull(
    policy: PolicyFunction,
    at: Weights,
    wanted: Iterable[str],
    example: Recorded,
    objective: Objective,
    totals: Totals,
    layer: int,
) -> _Pull:
    batch = objective_batch([example], objective, totals, policy)
    whole = {**policy.weights, **at}
    leaves = {name: whole[name].detach().requires_grad_() for name in sorted(wanted)}
    seen: list[Tensor] = []

    def cut(hidden: Tensor) -> Tensor:
        seen.extend([hidden, hidden.detach().requires_grad_()])
        return seen[1]

    with torch.enable_grad(), at_layer(policy, layer, cut):
        logits = policy.logits({**at, **leaves}, batch)
    hidden, leaf = seen
    plain = logits.detach()
    token_weights = objective.token_weights(read_logps(objective, plain, batch), batch)
    cotangent, *over = torch.autograd.grad(
        logits, [leaf, *leaves.values()], force(token_weights, plain, batch), allow_unused=True
    )
    under: Sequence[Tensor | None] = [None] * len(leaves)
    if hidden.requires_grad:
        under = torch.autograd.grad(hidden, list(leaves.values()), cotangent, allow_unused=True)
    below = {name: g for name, g in zip(leaves, under, strict=True) if g is not None}
    above = {n: g for n, g in zip(leaves, over, strict=True) if g is not None and n in below}
    terms = trained_terms(objective, plain, batch)
    return _Pull(FeatureForce(example.id, terms, cotangent), below, above)


def _step(update: float | FrozenUpdate, gradient: Weights) -> dict[str, Tensor]:
    if isinstance(update, FrozenUpdate):
        return update.along(gradient)
    return {name: -update * g for name, g in gradient.items()}


def _totals(examples: Sequence[Recorded], objective: Objective) -> Totals:
    if not examples:
        raise ConfigError("examples", [], "give at least one example of the step")
    return step_totals(examples, objective)
