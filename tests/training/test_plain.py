"""One process: a training against its algorithm written out in torch, its results and schedules."""

from __future__ import annotations

import copy
import json
import math
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, get_scheduler

from dynolab.data.batches import draw
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.rows import Example, ProbeRow, read_rows
from dynolab.errors import ConfigError
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.probes.score import score_probes
from dynolab.results.study import ProbeScore
from dynolab.training.config import TrainConfig
from dynolab.training.engine import learning_rate
from models.language import load_language_model, load_tokenizer
from tests.training.small import logged, run_small, settings, step_record


def test_the_result_loads_and_scores_as_its_last_probes(inputs: Path, tmp_path: Path) -> None:
    job = run_small(inputs, tmp_path, settings())
    model = AutoModelForCausalLM.from_pretrained(job.output / "model")
    encoder = Encoder(load_tokenizer(job.output / "model"), 48, "error")
    probes = list(read_rows(inputs / "probes.jsonl", ProbeRow))
    scores = score_probes(ResponseLogits(model), probes, encoder, batch_tokens=16_384)
    last = list(read_rows(job.output / "probes.jsonl", ProbeScore))[-len(scores) :]
    assert [ProbeScore(step=6, **dict(score)) for score in scores] == last


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


STEPS, BATCH, BETA, RATE, CLIP = 5, 6, 0.4, 0.2, 0.5


def logp(model: torch.nn.Module, sequence: Encoded) -> torch.Tensor:
    logits = model(torch.tensor([sequence.ids])).logits[0].log_softmax(-1)
    first = sequence.prompt_length
    return sum(logits[at - 1, sequence.ids[at]] for at in range(first, len(sequence.ids)))


def test_preference_training_is_the_algorithm_written_out(inputs: Path, tmp_path: Path) -> None:
    config = settings(
        objective={"name": "dpo", "beta": BETA},
        optimizer={"name": "sgd", "learning_rate": RATE, "momentum": 0.9, "weight_decay": 0.01},
        steps=STEPS,
        batch_size=BATCH,
        micro_batch_size=2,
        warmup_steps=2,
        clip_norm=CLIP,
        probe_every=2,
        checkpoint_every=0,
        record_steps=[0, 3],
    )
    began = time.time()
    job = run_small(inputs, tmp_path, config)
    ended = time.time()

    model = load_language_model(job.model).eval()
    reference = copy.deepcopy(model)
    rows = Encoder(load_tokenizer(job.model), 48, "error").examples(
        read_rows(job.examples, Example)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0, momentum=0.9, weight_decay=0.01)
    lines = logged(job)
    trained = [line for line in lines if "train/loss" in line.metrics]
    for step in range(STEPS):
        drawn = [rows[place] for place in draw(step, BATCH, len(rows), config.seed)]
        sums = dict.fromkeys(("loss", "margin", "chosen_logp", "push"), 0.0)
        pushes = []
        for row in drawn:
            up, down = logp(model, row.chosen), logp(model, row.rejected)
            with torch.no_grad():
                margin0 = logp(reference, row.chosen) - logp(reference, row.rejected)
            margin = BETA * (up - down - margin0)
            loss = -torch.nn.functional.logsigmoid(margin) / BATCH
            loss.backward()
            pushes += 2 * [BETA / (1 + math.exp(float(margin.detach())))]
            sums["loss"] += float(loss.detach())
            sums["margin"] += float(margin.detach()) / BATCH
            sums["chosen_logp"] += float(up.detach()) / BATCH
            sums["push"] += pushes[-1] / BATCH
        norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
        factor = min(1.0, CLIP / (float(norm) + 1e-6))
        rate = RATE * min(1, (step + 1) / 2)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        for parameter in model.parameters():
            parameter.grad *= factor
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()

        line = trained[step]
        assert (line.step, line.examples) == (step + 1, (step + 1) * BATCH)
        assert began <= line.time <= ended
        median = sorted(pushes)[BATCH - 1 : BATCH + 1]
        expected = {
            "train/loss": pytest.approx(sums["loss"], rel=1e-4),
            "train/margin": pytest.approx(sums["margin"], rel=1e-3, abs=1e-5),
            "train/chosen_logp": pytest.approx(sums["chosen_logp"], rel=1e-5),
            "train/dynamic_learning_rate": pytest.approx(sums["push"], rel=1e-4),
            "train/dynamic_learning_rate/q50": pytest.approx(sum(median) / 2, rel=1e-4),
            "train/grad_norm": pytest.approx(float(norm), rel=1e-4),
            "train/learning_rate": pytest.approx(rate),
        }
        assert {name: line.metrics[name] for name in expected} == expected
        assert 0 < line.metrics["train/examples_per_s"] < BATCH / 1e-4
        if step in (0, 3):
            record = step_record(job, step)
            facts = record.facts
            assert (facts.step, facts.learning_rate, facts.grad_norm, facts.clip_factor) == (
                step,
                pytest.approx(rate),
                pytest.approx(float(norm), rel=1e-4),
                pytest.approx(factor, rel=1e-4),
            )
            assert [example.id for example in record.examples] == [row.id for row in drawn]
            after = dict(model.named_parameters())
            for name in before:
                torch.testing.assert_close(record.before[name], before[name], rtol=0, atol=2e-6)
                torch.testing.assert_close(record.after[name], after[name], rtol=0, atol=2e-6)
    assert factor < 1, "the clip is at work"
    saved = dict(load_language_model(job.output / "model").named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(saved[name], parameter, rtol=0, atol=2e-6)
    assert [line.step for line in lines] == [0, 1, 2, 2, 3, 4, 4, 5, 5]
    assert all(line.metrics["probe/seconds"] > 0 for line in lines if line not in trained)
    assert sorted(path.name for path in (job.output / "forces").iterdir()) == [
        "step-00000000",
        "step-00000003",
    ]
    written = json.loads((job.output / "summary.json").read_text())
    rows_kept = written.pop("rows")
    assert rows_kept and written == {"steps": STEPS, "objective": "dpo"}
    assert not list(job.resume_out.iterdir())
