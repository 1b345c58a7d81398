"""Every objective on pairs trains as it is, and its recorded step replays from its closed form."""

from __future__ import annotations

import json

import pytest

from dynolab.forces import PolicyFunction, replay_error, rounding_floor, split_step
from dynolab.training.config import TrainConfig
from dynolab.training.loop import train
from tests.forces.small_models import neox, pairs, train_steps, with_reference
from tests.training.small import make_files, make_job, make_policy, make_tokenizer, settings

OBJECTIVES = [
    {"name": "sft"},
    {"name": "sft_extended"},
    {"name": "dpo", "label_smoothing": 0.1},
    {"name": "dpo", "negative_dose": 0.3},
    {"name": "robust_dpo"},
    {"name": "ipo"},
    {"name": "ipo", "normalise": "mean"},
    {"name": "slic", "margin": 5.0},
    {"name": "hinge"},
    {"name": "simpo"},
    {"name": "sppo", "beta": 0.05},
]


def label(objective: dict[str, object]) -> str:
    return "-".join(str(value) for value in objective.values())


@pytest.mark.parametrize("objective", OBJECTIVES, ids=label)
def test_a_real_step_is_the_sum_of_its_sides(objective):
    model = neox()
    config = TrainConfig.model_validate(
        {
            "objective": objective,
            "engine": {"kind": "plain", "ranks": 1},
            "optimizer": {"name": "sgd", "learning_rate": 1e-2, "momentum": 0.5},
        }
    )
    made = train_steps(model, config, with_reference(model, pairs(3)), steps=2)
    record = made.records[-1]
    split = split_step(record, PolicyFunction(made.model))
    assert replay_error(split, record) < 1e-5 + 2 * rounding_floor(record)


@pytest.mark.parametrize("objective", [{"name": "sft_extended"}, {"name": "simpo"}], ids=label)
def test_the_trainer_lowers_its_loss(objective, tmp_path):
    make_files(tmp_path)
    tokenizer = make_tokenizer()
    config = settings(
        objective=objective,
        probe_every=0,
        checkpoint_every=0,
        record_steps=[],
        warmup_steps=0,
        steps=12,
        batch_size=24,
        micro_batch_size=8,
    )
    job = make_job(tmp_path, tmp_path / "run", config)
    train(job, make_policy(tokenizer), tokenizer)
    lines = [json.loads(line) for line in (job.output / "metrics.jsonl").read_text().splitlines()]
    losses = [line["metrics"]["train/loss"] for line in lines if "train/loss" in line["metrics"]]
    assert len(losses) == 12 and losses[-1] < losses[0]
