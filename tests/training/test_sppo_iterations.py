"""SPPO's iterations: its reference is the policy at the beginning of the rollout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dynolab.data.encode import Encoded
from dynolab.data.rows import Example, read_rows
from dynolab.training.job import TrainJob
from models.language import load_language_model
from tests.training.small import group_settings, run_small, settings, step_record

BETA, RATE = 0.1, 0.001
SPPO = {"name": "sppo", "beta": BETA, "labels": "soft"}


def plain_logp(model: nn.Module, sequence: Encoded) -> Tensor:
    logits = model(torch.tensor([sequence.ids])).logits[0, sequence.prompt_length - 1 : -1]
    response = torch.tensor(sequence.ids[sequence.prompt_length :])
    return logits.log_softmax(-1).gather(-1, response[:, None]).sum()


def model_at(job: TrainJob, weights: dict[str, Tensor]) -> nn.Module:
    model = load_language_model(job.model, torch.float64).eval()
    model.load_state_dict({name: w.double() for name, w in weights.items()}, strict=False)
    return model


def test_steps_descend_the_paper_s_loss_against_the_policy_of_their_iteration(
    inputs: Path, tmp_path: Path
) -> None:
    """Each step's realised change against autograd of the plain loss at recorded weights."""
    config = group_settings(
        objective=SPPO,
        optimizer={"name": "sgd", "learning_rate": RATE},
        steps=4,
        record_steps=[0, 1, 2, 3],
        completions=5,
        clip_norm=1e6,
    )
    job = run_small(inputs, tmp_path, config)
    records = [step_record(job, step) for step in config.record_steps]
    for number, record in enumerate(records):  # two steps an iteration
        start = model_at(job, records[number - number % 2].before)
        policy = model_at(job, record.before)
        loss = torch.zeros((), dtype=torch.float64)
        for pair in record.examples:
            assert pair.wins[0] > 0.5 > pair.wins[1]
            for answer, win in zip((pair.chosen, pair.rejected), pair.wins, strict=True):
                assert win * 10 == pytest.approx(round(win * 10))  # of five answers, halves too
                with torch.no_grad():
                    reference = plain_logp(start, answer)
                loss = loss + (plain_logp(policy, answer) - reference - (win - 0.5) / BETA) ** 2
        (loss / len(record.examples)).backward()
        named = {name: p for name, p in policy.named_parameters() if p.grad is not None}
        moved = {name: record.after[name] - record.before[name] for name in named}
        steps = {name: -RATE * p.grad for name, p in named.items()}
        gap = sum(float((moved[name] - step).square().sum()) for name, step in steps.items())
        size = sum(float(step.square().sum()) for step in steps.values())
        assert (gap / size) ** 0.5 < 1e-3


def test_rows_bring_their_own_preferences(inputs: Path, tmp_path: Path) -> None:
    job = run_small(inputs, tmp_path, settings(objective=SPPO, record_steps=[0]))
    wins = {row.id: row.wins for row in read_rows(job.examples, Example)}
    taken = {example.id: example.wins for example in step_record(job, 0).examples}
    assert taken.items() <= wins.items()
    assert "wins" not in Example(id="a", prompt="p", chosen="c").model_dump_json()
