"""Derivatives through a whole training, against autograd through all of it and against doses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dynolab.data.batches import collate_examples, count_totals
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction, View
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.functional import Functional
from dynolab.forces.ledger.measures import likeliest
from dynolab.forces.ledger.metagradient import Metagradient
from dynolab.objectives import DPOConfig, SFTConfig, build_objective
from dynolab.training.config import OptimizerConfig
from dynolab.training.step_record import StepRecord
from tests.forces.small_models import llama, trained
from tests.forces.test_ledger import FUNCTIONALS

PLAIN = OptimizerConfig(name="sgd", learning_rate=0.05)
HEAVY = OptimizerConfig(name="sgd", learning_rate=0.05, momentum=0.9, weight_decay=0.1)
CLIP = 0.5


def derivatives(records: Sequence[StepRecord], policy: PolicyFunction, **settings: int) -> Tensor:
    """Derivatives by the weights of steps × examples × functionals."""
    backwards = Metagradient(policy, FUNCTIONALS, **settings)
    return torch.stack([backwards.enter(record).nats for record in reversed(records)]).flip(0)


def end(records: Sequence[StepRecord], policy: PolicyFunction, doses: Tensor) -> list[Tensor]:
    """Every functional after the same training with other weights of the examples.

    Written out: the loss of every example alone, torch's clipping and SGD, all of it in the graph.
    """
    place = {name: w.clone().requires_grad_() for name, w in policy.cast(records[0].before).items()}
    momentum: dict[str, Tensor] = {}
    for record, weights in zip(records, doses, strict=True):
        facts, config = record.facts, record.facts.optimizer
        loss = sum(
            w * example_loss(record, policy, place, number) for number, w in enumerate(weights)
        )
        gradient = torch.autograd.grad(loss, list(place.values()), create_graph=True)
        norm = torch.stack([g.square().sum() for g in gradient]).sum().sqrt()
        factor = (CLIP / (norm + 1e-6)).clamp(max=1.0)
        pulls = {
            name: factor * g + config.weight_decay * w
            for (name, w), g in zip(place.items(), gradient, strict=True)
        }
        momentum = {name: config.momentum * momentum.get(name, 0) + g for name, g in pulls.items()}
        place = {name: w - facts.learning_rate * momentum[name] for name, w in place.items()}
    return [value(functional, policy, place) for functional in FUNCTIONALS]


def example_loss(record: StepRecord, policy: PolicyFunction, at, number: int) -> Tensor:  # type: ignore[no-untyped-def]
    """One example's share of the loss of its step."""
    objective = build_objective(record.facts.objective)
    rows = [example.encoded() for example in record.examples]
    totals = count_totals(rows, objective.sides)
    batch = collate_examples([rows[number]], 0, objective.sides, totals)
    if objective.needs_reference:
        example = record.examples[number]
        known = [*example.chosen_reference, *example.rejected_reference]
        batch = replace(batch, reference=torch.tensor(known, dtype=policy.dtype))
    return objective.loss(policy.logps(at, batch), batch)


def value(functional: Functional, policy: PolicyFunction, at) -> Tensor:  # type: ignore[no-untyped-def]
    total = torch.zeros((), dtype=policy.dtype)
    for term in functional.terms:
        batch = policy.batch([term.sequence])
        view = View.argmax(policy.logits(at, batch).detach()) if term.measure == likeliest else None
        total = total + term.weight * policy.observed(at, batch, view).sum()
    return total


@pytest.mark.parametrize("optimizer", [PLAIN, HEAVY], ids=["sgd", "momentum and decay"])
@pytest.mark.parametrize("objective", [DPOConfig(beta=0.5), SFTConfig()], ids=["dpo", "sft"])
def test_it_is_autograd_through_the_whole_training(policy, optimizer, objective) -> None:
    records = trained(optimizer, objective, steps=4)
    assert any(record.facts.clip_factor < 1 for record in records)
    doses = torch.ones(len(records), 4, dtype=torch.float64, requires_grad=True)
    truth = torch.stack(
        [torch.autograd.grad(q, doses, retain_graph=True)[0] for q in end(records, policy, doses)],
        dim=-1,
    )
    for settings in ({}, {"batch_tokens": 16}):
        torch.testing.assert_close(
            derivatives(records, policy, **settings), truth, rtol=1e-6, atol=1e-9
        )


def test_with_a_dose_it_is_what_another_weight_in_every_step_does(policy) -> None:
    """Central differences; the step's gradient is no loss's, and its derivative not symmetric."""
    dosed = DPOConfig(beta=0.5, negative_dose=0.3)
    records, step = trained(HEAVY, dosed, steps=4), 1e-4
    nats = derivatives(records, policy)
    for number in (0, 3):
        doses = torch.ones(2, len(records), 4, dtype=torch.float64)
        doses[:, :, number] += torch.tensor([step, -step])[:, None]
        more, less = (torch.stack(end(records, policy, each)).detach() for each in doses)
        truth = (more - less) / (2 * step)
        torch.testing.assert_close(nats[:, number].sum(0), truth, rtol=1e-5, atol=1e-8)


def test_at_small_steps_it_is_the_ledger_s_account(policy) -> None:
    """What later steps answer is of second order in the learning rate."""
    records = trained(HEAVY.model_copy(update={"learning_rate": 1e-6}), steps=4, clip_norm=1e3)
    ledger = Ledger(policy, FUNCTIONALS)
    lines = torch.stack([ledger.enter(record).lines for record in reversed(records)]).flip(0)
    by_example = lines.unflatten(1, (4, 2)).sum(2)
    torch.testing.assert_close(derivatives(records, policy), by_example, rtol=1e-3, atol=1e-12)


def test_tied_weights_are_differentiated_once() -> None:
    model = llama(dtype=torch.float64)
    policy, records = PolicyFunction(model, torch.float64), trained(PLAIN, model=model, steps=2)
    doses = torch.ones(2, 4, dtype=torch.float64, requires_grad=True)
    (truth,) = torch.autograd.grad(end(records, policy, doses)[0], doses)
    torch.testing.assert_close(derivatives(records, policy)[..., 0], truth, rtol=1e-6, atol=1e-9)


def test_what_it_cannot_differentiate_is_named(policy) -> None:
    first, second = trained(PLAIN, steps=2)
    with pytest.raises(ConfigError, match=r"optimizer\.name"):
        derivatives(trained(OptimizerConfig(name="adamw"), steps=1), policy)
    with pytest.raises(ConfigError, match="the last one first"):
        derivatives([second, first], policy)
