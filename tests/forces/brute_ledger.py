"""A line of a ledger by brute force: steps with and without responses, and forwards along them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from dynolab.forces import PolicyFunction, View, Weights, record_batch
from dynolab.forces.function.weights import gradients
from dynolab.forces.ledger.functional import Functional
from dynolab.forces.ledger.measures import likeliest
from dynolab.objectives import build_objective
from dynolab.training.engine import build_optimizer
from dynolab.training.step_record import SECOND_MOMENT_AFTER, StepRecord
from tests.forces.small_models import central_difference


def brute_line(
    policy: PolicyFunction,
    functionals: Sequence[Functional],
    records: Sequence[StepRecord],
    cause: int,
    responses: Collection[int],
) -> Tensor:
    """What some responses of step `cause` did to each functional up to the last step but one.

    torch takes the step with them and without; what differs in momentum goes on by doses. The
    record after a step holds the second moment that the step was made with, so the last one is not
    followed itself.
    """
    by_response = dose_gradients(records[cause], policy)
    rest = [g for place, g in enumerate(by_response) if place not in responses]
    with_all, without = (torch_step(records[cause], grads) for grads in (by_response, rest))
    line = torch.zeros(len(functionals), dtype=torch.float64)
    for record, after in zip(records[cause:-1], records[cause + 1 :], strict=True):
        optimizer = record.facts.optimizer
        if record is records[cause]:
            push = {name: with_all[name][0] - other[0] for name, other in without.items()}
        elif optimizer.name == "sgd" and not optimizer.momentum:
            break
        else:
            push = {
                name: dose(record, records[cause], after, name, with_all[name][1] - other[1])
                for name, other in without.items()
            }
        for end in (record.before, record.after):
            line += torch.tensor([along(q, policy, end, push) for q in functionals]) / 2
    return line


def torch_step(
    record: StepRecord, gradients: Sequence[Mapping[str, Tensor]]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Weights and momentum after torch's own clipped step on some responses' gradients."""
    facts = record.facts
    weights = {name: torch.nn.Parameter(w.double().clone()) for name, w in record.before.items()}
    optimizer = build_optimizer(facts.optimizer, weights.values())
    for name, weight in weights.items():
        weight.grad = sum((g[name] for g in gradients), torch.zeros_like(weight))
        tensors = record.state.get(name, {}).items()
        state = {key: w.double().clone() for key, w in tensors if key != SECOND_MOMENT_AFTER}
        if state and facts.optimizer.name != "sgd":
            state["step"] = torch.tensor(float(facts.step))
        optimizer.state[weight] = state
    torch.nn.utils.clip_grad_norm_(weights.values(), facts.clip_norm)
    for group in optimizer.param_groups:
        group["lr"] = facts.learning_rate
    optimizer.step()
    keys = ("exp_avg", "momentum_buffer")
    return {
        name: (
            weight.detach(),
            next((s for key in keys if (s := optimizer.state[weight].get(key)) is not None), None),
        )
        for name, weight in weights.items()
    }


def dose_gradients(record: StepRecord, policy: PolicyFunction) -> list[dict[str, Tensor]]:
    """Each response's gradient by autograd of the loss alone, cut off at the other responses."""
    objective = build_objective(record.facts.objective)
    leaves = {name: w.requires_grad_() for name, w in policy.cast(record.before).items()}
    by_response = []
    for example in range(len(record.examples)):
        batch = record_batch(record, policy, [example])
        logps = policy.logps(leaves, batch)
        (pull,) = torch.autograd.grad(objective.loss(logps, batch), logps, retain_graph=True)
        for response in range(len(batch.side)):
            total = (pull * logps)[batch.sequence == response].sum()
            by_response.append(gradients(total, leaves))
    return by_response


def dose(record: StepRecord, cause: StepRecord, after: StepRecord, name: str, b: Tensor) -> Tensor:
    """What b in the momentum after `cause` moves at `record`; `after` holds its new state."""
    facts, config = record.facts, record.facts.optimizer
    age = facts.step - cause.facts.step
    if config.name in ("sgd", "rmsprop"):
        return -facts.learning_rate * config.momentum**age * b
    beta1, beta2 = config.betas
    v = after.state[name]["exp_avg_sq"] / (1 - beta2 ** (facts.step + 1))
    share = beta1**age / (1 - beta1 ** (facts.step + 1))
    return -facts.learning_rate * share * b / (v.sqrt() + config.epsilon)


def along(functional: Functional, policy: PolicyFunction, at: Weights, push: Weights) -> float:
    """The functional's derivative along a change, by central differences."""
    total = 0.0
    for term in functional.terms:
        batch = policy.batch([term.sequence])
        view = None
        if term.measure == likeliest:
            view = View.argmax(policy.logits(policy.cast(at), batch))
        total += term.weight * float(central_difference(policy, at, push, batch, view=view).sum())
    return total
