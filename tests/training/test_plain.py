"""One process: results, refusals, schedules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from dynolab.data.batches import draw
from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, ProbeRow, read_rows, write_rows
from dynolab.errors import ConfigError, Diverged
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.probes.score import score_probes
from dynolab.results.study import ProbeScore
from dynolab.training.config import TrainConfig
from dynolab.training.loop import train
from dynolab.training.optimizer import learning_rate
from models.language import load_language_model, load_tokenizer
from tests.training.small import make_files, make_job, settings, trained_weights


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_files(folder)
    return folder


def run(
    inputs: Path, folder: Path, resume_from: Path | None = None, **changes: Any
) -> dict[str, torch.Tensor]:
    job = make_job(inputs, folder, settings(**changes), resume_from)
    train(job, load_language_model(job.model), load_tokenizer(job.model))
    return trained_weights(job)


def test_the_result_loads_and_says_what_was_trained(inputs: Path, tmp_path: Path) -> None:
    run(inputs, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "output" / "model")
    encoder = Encoder(load_tokenizer(tmp_path / "output" / "model"), 48, "error")
    probes = list(read_rows(inputs / "probes.jsonl", ProbeRow))
    scores = score_probes(ResponseLogits(model), probes, encoder, batch_tokens=16_384)
    last = list(read_rows(tmp_path / "output" / "probes.jsonl", ProbeScore))[-len(scores) :]
    assert [ProbeScore(step=6, **dict(score)) for score in scores] == last
    lines = [json.loads(line) for line in (tmp_path / "output" / "metrics.jsonl").open()]
    trained = [line for line in lines if "train/loss" in line["metrics"]]
    probed = [line for line in lines if "probe/chosen/logp" in line["metrics"]]
    assert [line["step"] for line in trained] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in probed] == [0, 2, 4, 6]
    assert trained[0]["metrics"]["train/loss"] == pytest.approx(0.6931, abs=1e-3)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"engine": {"kind": "deepspeed", "ranks": 3}}, "batch_size"),
        ({"micro_batch_size": 3}, "micro_batch_size"),
        ({"engine": {"kind": "plain", "ranks": 2}}, "engine.ranks"),
        ({"engine": {"kind": "plain", "ranks": 1, "dtype": "bf16"}}, "engine.dtype"),
        ({"engine": {"kind": "deepspeed", "zero_stage": 0, "dtype": "bf16"}}, "engine.zero_stage"),
        ({"record_steps": [6]}, "record_steps"),
    ],
)
def test_settings_that_do_not_fit_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        settings(**changes)


def test_rows_without_a_rejected_answer_are_refused(inputs: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", [Example(id="a", prompt="w1", chosen=" w2")])
    job = make_job(inputs, tmp_path, settings()).model_copy(
        update={"examples": tmp_path / "train.jsonl"}
    )
    with pytest.raises(ConfigError, match="needs a rejected answer"):
        train(job, load_language_model(job.model), load_tokenizer(job.model))


def test_divergence_stops_and_names_the_rows(inputs: Path, tmp_path: Path) -> None:
    job = make_job(inputs, tmp_path, settings())
    policy = load_language_model(job.model)
    with torch.no_grad():
        policy.get_output_embeddings().weight.fill_(float("nan"))
    with pytest.raises(Diverged, match="rows r"):
        train(job, policy, load_tokenizer(job.model))


def test_warm_up_is_linear_then_constant() -> None:
    config = TrainConfig.model_validate({"optimizer": {"learning_rate": 0.4}}).optimizer
    rates = [learning_rate(config, 4, step) for step in range(6)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


def test_batches_walk_through_whole_epochs() -> None:
    drawn = [row for step in range(6) for row in draw(step, 5, 10, seed=3)]
    for epoch in range(3):
        assert sorted(drawn[10 * epoch : 10 * epoch + 10]) == list(range(10))
    assert drawn[:10] != drawn[10:20]
    across = [row for step in range(5) for row in draw(step, 4, 10, seed=3)]
    assert across == drawn[:20]
