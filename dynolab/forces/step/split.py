"""A recorded step as batches, and split into chosen and rejected answers and what else it did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch, Totals, by_length, totals_of
from dynolab.errors import ConfigError
from dynolab.forces.function.checks import check_record
from dynolab.forces.function.policy import PAD_ID, PolicyFunction
from dynolab.forces.function.views import View
from dynolab.forces.function.weights import NamedTensors, Weights
from dynolab.forces.step.one_step import norm_of
from dynolab.forces.step.optimizers import (
    FrozenUpdate,
    changes_without,
    clipping_of,
    is_linear,
    optimizer_map,
    with_clip_factor,
)
from dynolab.objectives import Objective, build_objective
from dynolab.training.step_batch import collate_step
from dynolab.training.step_record import Recorded, StepRecord

PARTS = ("from_chosen", "from_rejected", "from_together", "from_history")


@dataclass(frozen=True)
class SideGradients:
    """Gradient of the loss through either side's tokens; their sum is the loss's gradient."""

    chosen: NamedTensors
    rejected: NamedTensors


@dataclass(frozen=True)
class UpdateSplit:
    """The recorded update as a sum of parts, and the map from gradients to them.

    `from_chosen` and `from_rejected` are what the step would have lacked without all its chosen, or
    all its rejected tokens; `from_together` what both did by sharing a clip factor and a second
    moment; `from_history` what the step would do without its batch: momentum so far and weight
    decay. `gradient`: the loss's, before clipping.
    """

    from_chosen: NamedTensors
    from_rejected: NamedTensors
    from_together: NamedTensors
    from_history: NamedTensors
    update: FrozenUpdate
    gradient: NamedTensors

    def parts(self) -> dict[str, NamedTensors]:
        """The parts by name, those of `PARTS`."""
        return {name: getattr(self, name) for name in PARTS}

    def total_of(self, name: str) -> Float[Tensor, " ..."]:
        """The replayed update of one parameter."""
        total = torch.zeros_like(self.from_history[name])
        for part in self.parts().values():
            total += part[name]
        return total


def split_step(
    record: StepRecord, policy: PolicyFunction, *, batch_tokens: int | None = None
) -> UpdateSplit:
    """Replays a recorded step at the weights before it and splits its update.

    `Δθ = from_chosen + from_rejected + from_together + from_history`. With the loss's gradient
    `g = g_chosen + g_rejected`, `g_side = ∇_θ(−Σ_{l∈side} c_l log π_l)`, c_l the objective's closed
    form, `from_side = u(g) − u(g − g_side)` by the optimizer's own map u (`optimizers.py`). Where
    that is linear and nothing is clipped, `from_together` is zero.

    **Arguments:**

    - `policy`: the recorded model; its own weights are used only where the record has none.
    - `batch_tokens`: bound on sequences × padded length of one forward; default: the policy's.

    **Raises:** `ConfigError` if the model cannot score an example, or a state contains nan.
    """
    check_record(record, policy.causal)
    gradients = side_gradients(record, policy, batch_tokens=batch_tokens)
    # Without the chosen tokens the gradient is that of the rejected ones, and the other way round.
    norms = [norm_of(side.values()) for side in (gradients.rejected, gradients.chosen)]
    norm = norm_of(g + gradients.rejected[name] for name, g in gradients.chosen.items())
    facts = with_clip_factor(record.facts, norm)
    clip_factor = facts.clip_factor
    factors = clipping_of(facts).without(torch.stack(norms), norm, clip_factor)
    shares_add_up = is_linear(facts.optimizer) and bool((factors == clip_factor).all())
    parts: dict[str, NamedTensors] = {name: {} for name in PARTS}
    scale: NamedTensors = {}
    total: NamedTensors = {}
    for name in list(gradients.chosen):  # a parameter's gradients end where its parts begin
        sides = torch.stack([gradients.chosen.pop(name), gradients.rejected.pop(name)]).flatten(1)
        theta = record.before[name].to(policy.home, policy.dtype)
        state = {
            key: tensor.to(policy.home, policy.dtype).flatten()
            for key, tensor in record.state.get(name, {}).items()
        }
        gradient = sides.sum(0)
        update_map = optimizer_map(facts, theta.flatten(), state, gradient)
        if shares_add_up:
            chosen, rejected = -update_map.scale * sides
            together = torch.zeros_like(gradient)
        else:
            chosen, rejected = changes_without(update_map, sides, clip_factor, factors.to(gradient))
            together = -update_map.scale * gradient - chosen - rejected
        made_of = zip(PARTS, (chosen, rejected, together, update_map.history), strict=True)
        for part, change in made_of:
            parts[part][name] = change.view_as(theta)
        scale[name], total[name] = update_map.scale.view_as(theta), gradient.view_as(theta)
    return UpdateSplit(**parts, update=FrozenUpdate(scale), gradient=total)


def side_gradients(
    record: StepRecord, policy: PolicyFunction, *, batch_tokens: int | None = None
) -> SideGradients:
    """Gradients of the recorded loss through chosen and through rejected tokens.

    The gradient through a side is that of `−Σ_{l∈side} c_l log π_l` with
    `c_l = −∂loss/∂log π_l` held constant; both together are the gradient of the loss.
    """
    objective = build_objective(record.facts.objective)
    leaves = {name: w.requires_grad_() for name, w in policy.cast(record.before).items()}
    sums = {
        side: {name: torch.zeros_like(w) for name, w in leaves.items()}
        for side in (CHOSEN, REJECTED)
    }
    tokens = batch_tokens or policy.batch_tokens
    for _, batch in step_batches(record.examples, objective, policy, tokens):
        logps = objective_logps(policy, leaves, batch, objective)
        token_weights = objective.token_weights(logps.detach(), batch)
        for side in objective.sides:
            surrogate = -(token_weights * logps)[batch.token_side == side].sum()
            last = side == objective.sides[-1]
            gradients = torch.autograd.grad(
                surrogate, list(leaves.values()), retain_graph=not last, materialize_grads=True
            )
            for total, gradient in zip(sums[side].values(), gradients, strict=True):
                total += gradient
    return SideGradients(sums[CHOSEN], sums[REJECTED])


def record_batch(record: StepRecord, policy: PolicyFunction, examples: Sequence[int]) -> TokenBatch:
    """Some of a record's examples as their objective saw them: sides, references, denominators.

    **Arguments:** `examples`: positions in `record.examples`.
    """
    objective = build_objective(record.facts.objective)
    totals = step_totals(record.examples, objective)
    members = [record.examples[number] for number in examples]
    return objective_batch(members, objective, totals, policy)


def step_batches(
    examples: Sequence[Recorded], objective: Objective, policy: PolicyFunction, batch_tokens: int
) -> Iterator[tuple[list[int], TokenBatch]]:
    """A step's examples in batches of at most so many padded tokens, with their numbers."""
    totals = step_totals(examples, objective)
    for numbers in micro_batches(examples, objective.sides, batch_tokens):
        members = [examples[number] for number in numbers]
        yield numbers, objective_batch(members, objective, totals, policy)


def objective_batch(
    examples: Sequence[Recorded],
    objective: Objective,
    totals: Totals,
    policy: PolicyFunction,
) -> TokenBatch:
    """Examples as an objective sees them in a step with the given denominators."""
    for example in examples:
        example.responses(objective.sides)  # raises, naming an example that lacks a side
    scored = [example.scored(policy.dtype) for example in examples]
    batch = collate_step(scored, objective, totals, PAD_ID, temperature=examples[0].temperature)
    if objective.needs_reference and batch.reference is None:
        raise ConfigError(
            f"record example {examples[0].id}",
            None,
            "its objective needs the reference's log-probabilities; record them with the step",
        )
    return batch.to(policy.device)


def step_totals(examples: Sequence[Recorded], objective: Objective) -> Totals:
    """Denominators of a step on these examples."""
    trained = list(chain.from_iterable(example.responses(objective.sides) for example in examples))
    return totals_of(len(examples), trained)


def objective_logps(
    policy: PolicyFunction, weights: Weights, batch: TokenBatch, objective: Objective
) -> Float[Tensor, "tokens ..."]:
    """The log-probabilities that an objective reads, in nats: `read_logps` at given weights."""
    if objective.dense:
        return policy.observed(weights, batch, View(batch.targets))
    return policy.logps(weights, batch)


def replay_error(split: UpdateSplit, record: StepRecord) -> float:
    """`‖Σ parts − (after − before)‖ / ‖after − before‖`, Frobenius over all parameters."""
    gaps = (
        split.total_of(name).to("cpu", torch.float64) - change
        for name, change in _recorded_change(record)
    )
    return _of_change(norm_of(gaps), record)


def rounding_floor(record: StepRecord) -> float:
    """The replay error that storing `after` in its own precision leaves in a perfect replay.

    Rounding to a grid of spacing ulp errs by ulp/√12 in the root mean square. A replay error of
    this size is only rounding.
    """
    spacings = (
        torch.nextafter(w.abs(), torch.full_like(w, torch.inf)) - w.abs()
        for w in record.after.values()
    )
    return _of_change(norm_of(spacings) / 12**0.5, record)


def _of_change(size: Float[Tensor, ""], record: StepRecord) -> float:
    """A norm as a share of that of the recorded change."""
    change_size = norm_of(change for _, change in _recorded_change(record))
    if not change_size > 0:
        raise ConfigError(
            "record", float(change_size), "the recorded step changed no weight; record another step"
        )
    return float(size / change_size)


def _recorded_change(record: StepRecord) -> Iterator[tuple[str, Float[Tensor, " ..."]]]:
    """What the step changed, in float64, where differences of float32 numbers are exact."""
    for name, before in record.before.items():
        yield name, record.after[name].double() - before.double()


def micro_batches(
    examples: Sequence[Recorded], sides: Sequence[int], batch_tokens: int
) -> Iterator[list[int]]:
    """Example numbers whose padded sequences stay within a number of tokens.

    Batches are of examples of similar length, the longest first, and in order within.
    """
    responses = [[sequence for _, sequence in example.responses(sides)] for example in examples]
    longest = [max(sequences, key=lambda sequence: len(sequence.ids)) for sequences in responses]
    return map(sorted, by_length(longest, batch_tokens // max(map(len, responses))))
