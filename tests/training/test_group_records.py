"""Recorded steps on sampled groups replay from their closed form, and have forces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dynolab.data.batches import CHOSEN, REJECTED
from dynolab.data.encode import Encoded
from dynolab.forces import (
    PolicyFunction,
    force_map,
    record_batch,
    replay_error,
    rounding_floor,
    split_step,
    step_terms,
    token_forces,
)
from dynolab.objectives import build_objective, read_logps
from dynolab.training.job import TrainJob
from dynolab.training.step_record import RecordedGroup, StepRecord
from models.language import load_language_model
from tests.training.small import group_settings, run_small, step_record

CASES: dict[str, dict[str, Any]] = {
    "grpo": {"objective": {"name": "grpo", "kl": 0.05}},
    "warm": {"objective": {"name": "grpo"}, "temperature": 0.7},
    "sequence": {"objective": {"name": "grpo", "ratio": "sequence", "aggregation": "grpo"}},
    "nthr": {"objective": {"name": "grpo", "advantage_rule": {"name": "nthr"}}},
    "simko": {"objective": {"name": "simko", "share": 0.2, "kl": 0.05}},
    "pairs": {"objective": {"name": "dpo"}},
}
# Momentum: history has a part. Step 1 is the second of its rollout: the policy has moved on.
CHANGES = {
    "optimizer": {"name": "sgd", "learning_rate": 0.3, "momentum": 0.5},
    "steps": 2,
    "record_steps": [1],
    "checkpoint_every": 0,
    "clip_norm": 0.5,
}


@pytest.fixture(scope="module")
def jobs(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainJob]:
    folder = tmp_path_factory.mktemp("records")
    return {
        name: run_small(inputs, folder / name, group_settings(**CHANGES, **case))
        for name, case in CASES.items()
    }


def load(job: TrainJob) -> tuple[StepRecord, PolicyFunction]:
    return step_record(job, 1), PolicyFunction(load_language_model(job.model), torch.float64)


def observed(record: StepRecord) -> Encoded:
    (_, first), *_ = record.examples[0].responses((CHOSEN, REJECTED))
    return first


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_step_is_the_sum_of_its_sides(jobs: dict[str, TrainJob], name: str) -> None:
    record, policy = load(jobs[name])
    split = split_step(record, policy)
    assert replay_error(split, record) < 1e-5 + 2 * rounding_floor(record)
    for part in split.parts().values():
        assert any(bool(change.any()) for change in part.values())


@pytest.mark.parametrize("name", ["grpo", "warm", "simko"])
def test_columns_add_up_to_the_step(jobs: dict[str, TrainJob], name: str) -> None:
    """In a plain gradient step, side by side; its own optimizer's sides share a second moment."""
    record, policy = load(jobs[name])
    record, watched = record.as_gradient_step(), observed(record)
    split = split_step(record, policy)
    by_token = [
        token_forces(record, policy, split.update, number, watched, at=record.before)
        for number in range(len(record.examples))
    ]
    batch = policy.batch([watched])
    parts = policy.change_along(record.before, [split.from_chosen, split.from_rejected], batch)
    borders = [
        sum(
            s.response_length for side, s in example.responses((CHOSEN, REJECTED)) if side == CHOSEN
        )
        for example in record.examples
    ]
    up = sum(f[:, :border].sum(1) for f, border in zip(by_token, borders, strict=True))
    down = sum(f[:, border:].sum(1) for f, border in zip(by_token, borders, strict=True))
    assert distance(up, parts[0]) < 1e-9
    assert distance(down, parts[1]) < 1e-9


def test_what_is_pushed_up_is_chosen_and_what_is_pushed_down_rejected(
    jobs: dict[str, TrainJob],
) -> None:
    record, policy = load(jobs["warm"])
    batch = record_batch(record, policy, range(len(record.examples)))
    objective = build_objective(record.facts.objective)
    rates = objective.token_weights(policy.logps(record.before, batch), batch)
    assert batch.temperature == 0.7
    assert bool((rates[batch.token_side == CHOSEN] >= 0).all())
    assert bool((rates[batch.token_side == REJECTED] <= 0).all())


@pytest.mark.parametrize("name", ["grpo", "warm", "sequence", "simko"])
def test_a_force_map_of_a_group_is_its_token_forces(jobs: dict[str, TrainJob], name: str) -> None:
    record, policy = load(jobs[name])
    update, watched = split_step(record, policy).update, observed(record)
    objective = build_objective(record.facts.objective)
    force = force_map(
        policy, [watched], record.examples, objective, update=update, at=record.before
    )
    for number, example in enumerate(record.examples):
        assert isinstance(example, RecordedGroup)
        columns = [at for at, of in enumerate(force.updating) if of.id == example.id]
        order = sorted(columns, key=lambda at: force.updating[at].side != "chosen")
        ours = torch.cat([torch.from_numpy(force.block(0, at)) for at in order], dim=1)
        exact = token_forces(record, policy, update, number, watched, at=record.before)
        assert distance(ours, exact) < 1e-9


@pytest.mark.parametrize("name", ["grpo", "warm", "sequence", "simko"])
def test_a_group_s_terms_are_those_of_the_force_that_trained(
    jobs: dict[str, TrainJob], name: str
) -> None:
    record, policy = load(jobs[name])
    objective = build_objective(record.facts.objective)
    batch = record_batch(record, policy, range(len(record.examples)))
    logits = policy.logits(policy.cast(record.before), batch).requires_grad_()
    loss = objective.loss(read_logps(objective, logits, batch), batch)
    (G,) = torch.autograd.grad(loss, logits)
    terms = [step_term.terms for step_term in step_terms(record, policy)]
    sizes = torch.cat([term.g_norm for term in terms])
    torch.testing.assert_close(sizes, G.norm(dim=-1), rtol=1e-9, atol=1e-15)
    pi = (logits.detach() / batch.temperature).softmax(-1)
    own = pi.gather(-1, batch.token[:, None])[:, 0]
    torch.testing.assert_close(torch.cat([term.energy for term in terms]), 1 - own)
    rates = torch.cat([term.learning_rate for term in terms])
    plain = rates.abs() * torch.cat([term.force_size for term in terms]) / batch.temperature
    assert torch.allclose(plain, sizes, rtol=1e-9, atol=1e-15) == (name != "simko")
