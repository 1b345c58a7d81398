"""One process: results and schedules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, get_scheduler

from dynolab.data.batches import draw
from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow, read_rows
from dynolab.errors import ConfigError
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.probes.score import score_probes
from dynolab.results.study import ProbeScore
from dynolab.training.config import TrainConfig
from dynolab.training.engine import learning_rate
from models.language import load_tokenizer
from tests.training.small import logged, run_small, settings


def test_the_result_loads_and_says_what_was_trained(inputs: Path, tmp_path: Path) -> None:
    job = run_small(inputs, tmp_path, settings())
    model = AutoModelForCausalLM.from_pretrained(job.output / "model")
    encoder = Encoder(load_tokenizer(job.output / "model"), 48, "error")
    probes = list(read_rows(inputs / "probes.jsonl", ProbeRow))
    scores = score_probes(ResponseLogits(model), probes, encoder, batch_tokens=16_384)
    last = list(read_rows(job.output / "probes.jsonl", ProbeScore))[-len(scores) :]
    assert [ProbeScore(step=6, **dict(score)) for score in scores] == last
    lines = logged(job)
    trained = [line for line in lines if "train/loss" in line.metrics]
    assert [line.step for line in trained] == [1, 2, 3, 4, 5, 6]
    assert [line.step for line in lines if "probe/chosen/logp" in line.metrics] == [0, 2, 4, 6]
    assert trained[0].metrics["train/loss"] == pytest.approx(0.6931, abs=1e-3)


def scheduled(schedule: str) -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "optimizer": {"learning_rate": 0.4},
            "schedule": schedule,
            "steps": 10,
            "warmup_steps": 4,
            "batch_size": 8,
        }
    )


def test_warm_up_is_linear_then_constant() -> None:
    rates = [learning_rate(scheduled("constant"), step) for step in range(6)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_after_warm_up_the_rate_falls_as_in_transformers(schedule: str) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    theirs = get_scheduler(schedule, optimizer, num_warmup_steps=4, num_training_steps=10)
    rates = []
    for _ in range(10):
        rates.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    ours = [learning_rate(scheduled(schedule), step) for step in range(10)]
    assert ours[:4] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert ours[4:] == pytest.approx(rates[4:])


def test_a_schedule_without_steps_after_the_warm_up_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"warmup_steps = 6: leaves none of the 6 steps"):
        TrainConfig.model_validate({"schedule": "cosine", "steps": 6, "warmup_steps": 6})


def test_batches_walk_through_whole_epochs() -> None:
    drawn = [row for step in range(6) for row in draw(step, 5, 10, seed=3)]
    for epoch in range(3):
        assert sorted(drawn[10 * epoch : 10 * epoch + 10]) == list(range(10))
    assert drawn[:10] != drawn[10:20]
    across = [row for step in range(5) for row in draw(step, 4, 10, seed=3)]
    assert across == drawn[:20]
