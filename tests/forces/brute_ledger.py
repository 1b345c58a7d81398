"""A line of a ledger by brute force: doses of one response, and forwards along them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dynolab.data.batches import collate_examples, count_totals
from dynolab.forces import PolicyFunction, View, Weights
from dynolab.forces.ledger.functional import Functional
from dynolab.objectives import build_objective
from dynolab.training.step_record import StepRecord
from tests.forces.small_models import central_difference


def brute_line(
    policy: PolicyFunction,
    functionals: Sequence[Functional],
    records: Sequence[StepRecord],
    cause: int,
    response: int,
) -> Tensor:
    """What a response of step `cause` did to each functional up to the last step but one.

    The record after a step holds the second moment that the step was made with, so the last one
    is not followed itself.
    """
    gradient = dose_gradients(records[cause], policy)[response]
    line = torch.zeros(len(functionals), dtype=torch.float64)
    for record, after in zip(records[cause:-1], records[cause + 1 :], strict=True):
        push = {name: dose(record, records[cause], after, name, g) for name, g in gradient.items()}
        for end in (record.before, record.after):
            line += torch.tensor([along(q, policy, end, push) for q in functionals]) / 2
    return line


def dose_gradients(record: StepRecord, policy: PolicyFunction) -> list[dict[str, Tensor]]:
    """Each response's gradient by autograd of the loss alone, cut off at the other responses."""
    objective = build_objective(record.facts.objective)
    rows = [example.encoded() for example in record.examples]
    batch = collate_examples(rows, 0, objective.sides, count_totals(rows, objective.sides))
    known = [
        value
        for example in record.examples
        for values in (example.chosen_reference, example.rejected_reference)
        for value in values
    ]
    batch = replace(batch, reference=torch.tensor(known, dtype=torch.float64))
    leaves = {name: w.requires_grad_() for name, w in policy.cast(record.before).items()}
    logps = policy.logps(leaves, batch)
    (pull,) = torch.autograd.grad(objective.loss(logps, batch), logps, retain_graph=True)
    return [
        dict(
            zip(
                leaves,
                torch.autograd.grad(
                    (pull * logps)[batch.sequence == number].sum(),
                    list(leaves.values()),
                    retain_graph=True,
                    materialize_grads=True,
                ),
                strict=True,
            )
        )
        for number in range(len(batch.side))
    ]


def dose(record: StepRecord, cause: StepRecord, after: StepRecord, name: str, g: Tensor) -> Tensor:
    """What a gradient that entered at `cause` moves at `record`; `after` holds its new state."""
    facts, config = record.facts, record.facts.optimizer
    age = facts.step - cause.facts.step
    clipped = cause.facts.clip_factor * g
    if config.name == "sgd":
        return -facts.learning_rate * config.momentum**age * clipped
    if config.name == "adamw":
        beta1, beta2 = config.betas
        v = after.state[name]["exp_avg_sq"] / (1 - beta2 ** (facts.step + 1))
        share = (1 - beta1) * beta1**age / (1 - beta1 ** (facts.step + 1))
        return -facts.learning_rate * share * clipped / (v.sqrt() + config.epsilon)
    raise AssertionError(config.name)


def along(functional: Functional, policy: PolicyFunction, at: Weights, push: Weights) -> float:
    """The functional's derivative along a change, by central differences."""
    total = 0.0
    for term in functional.terms:
        batch = policy.batch([term.sequence])
        view = None
        if term.likeliest:
            view = View.argmax(policy.logits(policy.cast(at), batch))
        total += term.weight * float(central_difference(policy, at, push, batch, view=view).sum())
    return total
