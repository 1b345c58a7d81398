"""Hidden layers: what an update does to features, and how each example pulls on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch, by_length
from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow
from dynolab.errors import ConfigError
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import Hidden, Reached, at_layers, blocks_of
from dynolab.forces.function.weights import Weights
from dynolab.forces.step.one_step import OneStep, change_of, midpoint
from dynolab.forces.step.split import micro_batches, objective_batch, step_totals
from dynolab.forces.step.step_forces import encode_probes
from dynolab.objectives import Objective, build_objective, read_logps
from dynolab.objectives.base import force
from dynolab.results.forces import LayerForce
from dynolab.training.step_record import Recorded, StepRecord


def hidden_states(
    policy: PolicyFunction, weights: Weights, batch: TokenBatch, layers: Sequence[int]
) -> Float[Tensor, "layers tokens width"]:
    """h_ℓ of some layers at the position that predicts each response token, by one forward pass.

    **Arguments:** `layers`: ℓ, the blocks already run, rising: 0 is the first block's input; the
    number of blocks, or −1, is the last block's output before the final norm.
    """
    seen: list[Float[Tensor, "tokens width"]] = []

    def see(hidden: Hidden) -> Hidden:
        seen.append(hidden[batch.sequence, batch.position])
        if len(seen) == len(layers):
            raise Reached
        return hidden

    with at_layers(policy, layers, see), suppress(Reached):
        policy.logits(weights, batch)
        raise ConfigError(
            "layers",
            layers,
            "the forward pass did not reach all; give a model that runs its blocks",
        )
    return torch.stack(seen)


@dataclass(frozen=True)
class FeatureStep(OneStep):
    """`OneStep` of h_ℓ of every layer, and `start`: h_ℓ before the change."""

    measured: Float[Tensor, "layers tokens width"]
    predicted: Float[Tensor, "layers tokens width"]
    start: Float[Tensor, "layers tokens width"]


def feature_step(
    policy: PolicyFunction,
    before: Weights,
    after: Weights,
    batch: TokenBatch,
    layers: Sequence[int],
    *,
    at: Weights | None = None,
) -> FeatureStep:
    """Measured and first-order change of h_ℓ at every response position: `one_step` for features.

    Prediction: `Δh = ∂h/∂θ · (after − before)`, at the midpoint unless `at` gives other weights.
    The residual is O(η²) at `before` and O(η³) at the midpoint. Parameters above a layer have no
    effect on it.

    **Arguments:** `layers`: as of `hidden_states`; one derivative gives those of all.
    """
    place = midpoint(before, after) if at is None else at
    (predicted,) = policy.derivatives(
        lambda weights: hidden_states(policy, weights, batch, layers),
        place,
        [change_of(before, after)],
    )
    with torch.no_grad():
        start = hidden_states(policy, policy.cast(before), batch, layers)
        end = hidden_states(policy, policy.cast(after), batch, layers)
    return FeatureStep(measured=end - start, predicted=predicted, start=start)


@dataclass(frozen=True)
class FeatureForce:
    """The force of one example of a step on the features of some layers: `(∇_h z)ᵀ G`.

    `cotangent` is ∂L/∂h_ℓ at every position of the example's sequences (chosen, then rejected; zero
    on padding); the step moves h against it.
    """

    id: str
    cotangent: Float[Tensor, "layers sequences length width"]

    @property
    def total(self) -> Float[Tensor, "layers width"]:
        """The cotangent's sum over positions: the pull on a shift common to all of them."""
        return self.cotangent.sum((1, 2))


def feature_forces(
    policy: PolicyFunction,
    examples: Sequence[Recorded],
    objective: Objective,
    layers: Sequence[int],
    *,
    at: Weights | None = None,
    step: Sequence[Recorded] | None = None,
    batch_tokens: int | None = None,
) -> list[FeatureForce]:
    """Each example's force on the features of some layers, by one backward pass for all of them.

    **Arguments:**

    - `layers`: as of `hidden_states`.
    - `at`: the weights; default: the policy's own.
    - `step`: all examples of the step, whose number, tokens and sequences the objective divides
      by; default: `examples`.
    - `batch_tokens`: bound of sequences × padded length of one forward; default: the policy's.
    """
    if not examples:
        raise ConfigError("examples", [], "give at least one example of the step")
    weights, totals = policy.cast(at or {}), step_totals(step or examples, objective)
    forces: dict[int, FeatureForce] = {}
    for numbers in micro_batches(examples, objective.sides, batch_tokens or policy.batch_tokens):
        batch = objective_batch([examples[n] for n in numbers], objective, totals, policy)
        seen: list[Hidden] = []

        def see(
            hidden: Hidden,
            seen: list[Hidden] = seen,
        ) -> Hidden:
            # Above the first of the layers, whatever reads it has a gradient.
            seen.append(hidden if hidden.requires_grad else hidden.detach().requires_grad_())
            return seen[-1]

        with torch.enable_grad(), at_layers(policy, layers, see):
            logits = policy.logits(weights, batch, forward_mode=False)
        plain = logits.detach()
        token_weights = objective.token_weights(read_logps(objective, plain, batch), batch)
        pulls = torch.autograd.grad(logits, seen, force(token_weights, plain, batch))
        # Sequences do not mix, so that each example's part is that of its own sequences.
        for place, number in enumerate(numbers):
            of_example = batch.example == place
            length = int(batch.attention_mask[of_example].sum(1).max())
            cotangent = torch.stack([pull[of_example, :length] for pull in pulls])
            forces[number] = FeatureForce(examples[number].id, cotangent)
    return [forces[number] for number in range(len(examples))]


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


LAYERS, EXAMPLES = 8, 8
"""Most layers, evenly spaced, and most examples of the step."""


def step_layers(
    record: StepRecord,
    policy: PolicyFunction,
    probes: Sequence[ProbeRow],
    encoder: Encoder,
    *,
    stage: str,
    batch_tokens: int | None = None,
) -> list[LayerForce]:
    """Energy and direction of a step's forces on features, and predicted against measured Δh.

    `feature_forces` of the step's first examples at the weights before it; `feature_step` at the
    midpoint, over the response positions of the watched answers.

    **Arguments:** as of `step_forces`.

    **Returns:** one row a layer; none for a model whose base has no list of its blocks.

    **Raises:** `ConfigError` for a model without forward derivatives.
    """
    modules = blocks_of(policy.causal)
    if modules is None:
        return []
    blocks = len(modules)
    spaced = torch.linspace(0, blocks, min(LAYERS, blocks + 1))
    layers = sorted({round(place) for place in spaced.tolist()})
    answers = [answer for _, answer in encode_probes(probes, encoder)]
    batches = [
        policy.batch([answers[member] for member in members])
        for members in by_length(answers, batch_tokens or policy.batch_tokens)
    ]
    forces = feature_forces(
        policy,
        record.examples[:EXAMPLES],
        build_objective(record.facts.objective),
        layers,
        at=record.before,
        step=record.examples,
        batch_tokens=batch_tokens,
    )
    pulls = torch.stack([example.total for example in forces], 1).double()
    steps = [feature_step(policy, record.before, record.after, batch, layers) for batch in batches]
    measured = torch.cat([step.measured for step in steps], 1).double()
    residual = torch.cat([step.residual for step in steps], 1).double()
    start = torch.cat([step.start for step in steps], 1).double()
    moved = measured.square().sum((1, 2))
    several = int(pulls[0].any(dim=1).sum()) > 1
    return [
        LayerForce(
            stage=stage,
            step=record.facts.step,
            layer=layer,
            layers=blocks,
            examples=len(forces),
            force=float(pulls[place].norm(dim=1).mean()),
            resultant=consistency(pulls[place]).resultant if several else math.nan,
            moved=float((moved[place] / start[place].square().sum()).sqrt()),
            unexplained=float(residual[place].square().sum() / moved[place]),
        )
        for place, layer in enumerate(layers)
    ]
