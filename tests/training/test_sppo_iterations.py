"""SPPO's iterations: its reference is the policy at the beginning of the rollout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dynolab.data.encode import Encoded
from dynolab.data.rows import Example, read_rows, write_rows
from dynolab.errors import ConfigError
from dynolab.rollouts.rewards import ALLOWED
from dynolab.training.job import TrainJob
from dynolab.training.loop import train
from dynolab.training.record import StepRecord
from models.language import load_language_model, load_tokenizer
from tests.training.small import group_settings, make_files, make_job, settings

BETA, RATE = 0.1, 0.02
SPPO = {"name": "sppo", "beta": BETA, "labels": "soft"}


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "tests.training.rewards")


def run(job: TrainJob) -> list[StepRecord]:
    train(job, load_language_model(job.model), load_tokenizer(job.model))
    return [StepRecord.load(place) for place in sorted((job.output / "forces").glob("step-*"))]


def plain_logp(model: nn.Module, one: Encoded) -> Tensor:
    logits = model(torch.tensor([one.ids])).logits[0, one.prompt_length - 1 : -1]
    response = torch.tensor(one.ids[one.prompt_length :])
    return logits.log_softmax(-1).gather(-1, response[:, None]).sum()


def model_at(job: TrainJob, weights: dict[str, Tensor]) -> nn.Module:
    model = load_language_model(job.model, torch.float64).eval()
    model.load_state_dict({name: w.double() for name, w in weights.items()}, strict=False)
    return model


def test_steps_descend_the_paper_s_loss_against_the_policy_of_their_iteration(
    tmp_path: Path,
) -> None:
    """Each step's realised change against autograd of the plain loss at recorded weights."""
    make_files(tmp_path)
    config = group_settings(
        objective=SPPO,
        optimizer={"name": "sgd", "learning_rate": RATE},
        steps=4,
        record_steps=[0, 1, 2, 3],
        rewards=[{"name": "tests.training.rewards.vowels"}],
        completions=5,
        clip_norm=1e6,
    )
    job = make_job(tmp_path, tmp_path / "run", config)
    records = run(job)
    for number, record in enumerate(records):  # two steps an iteration
        start = model_at(job, records[number - number % 2].before)
        policy = model_at(job, record.before)
        loss = torch.zeros((), dtype=torch.float64)
        for pair in record.examples:
            assert pair.wins[0] > 0.5 > pair.wins[1]
            for one, win in zip((pair.chosen, pair.rejected), pair.wins, strict=True):
                assert win * 10 == pytest.approx(round(win * 10))  # of five answers, halves too
                with torch.no_grad():
                    reference = plain_logp(start, one)
                loss = loss + (plain_logp(policy, one) - reference - (win - 0.5) / BETA) ** 2
        (loss / len(record.examples)).backward()
        named = {name: p for name, p in policy.named_parameters() if p.grad is not None}
        moved = {name: record.after[name] - record.before[name] for name in named}
        steps = {name: -RATE * p.grad for name, p in named.items()}
        gap = sum(float((moved[name] - step).square().sum()) for name, step in steps.items())
        size = sum(float(step.square().sum()) for step in steps.values())
        assert (gap / size) ** 0.5 < 1e-3


def test_rows_bring_their_own_preferences(tmp_path: Path) -> None:
    make_files(tmp_path)
    job = make_job(tmp_path, tmp_path / "run", settings(objective=SPPO, record_steps=[0]))
    (record,) = run(job)
    wins = {row.id: row.wins for row in read_rows(job.examples, Example)}
    assert {example.id: example.wins for example in record.examples}.items() <= wins.items()


def test_rows_without_preferences_are_refused_before_training(tmp_path: Path) -> None:
    make_files(tmp_path)
    rows = list(read_rows(tmp_path / "train.jsonl", Example))
    rows[3] = rows[3].model_copy(update={"wins": None})
    write_rows(tmp_path / "train.jsonl", rows)
    job = make_job(tmp_path, tmp_path / "run", settings(objective=SPPO))
    with pytest.raises(ConfigError, match=r"data\.wins.*1 rows have none, the first is r3"):
        run(job)
    assert '"wins"' not in rows[3].model_dump_json()
