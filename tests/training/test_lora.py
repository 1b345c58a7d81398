"""Training of adapters alone: the reference, the merged result, exact resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow, read_rows
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction, replay_error, rounding_floor, split_step
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.probes.score import score_probes
from dynolab.results.study import ProbeScore
from dynolab.rollouts.rewards import ALLOWED
from dynolab.training.config import GroupTrainConfig, TrainConfig
from dynolab.training.loop import train
from dynolab.training.record import StepRecord
from models.language import load_language_model, load_tokenizer
from tests.training.small import (
    distance,
    group_settings,
    make_files,
    make_job,
    settings,
    trained_weights,
)

LORA = {"lora": {"rank": 2, "alpha": 8}, "record_steps": []}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_files(folder)
    return folder


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "tests.training.rewards")


def run(
    inputs: Path,
    folder: Path,
    config: TrainConfig | GroupTrainConfig,
    resume_from: Path | None = None,
) -> dict[str, torch.Tensor]:
    job = make_job(inputs, folder, config, resume_from)
    train(job, load_language_model(job.model), load_tokenizer(job.model))
    return trained_weights(job)


def metrics(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "output" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["metrics"] for line in lines]


def test_the_result_is_a_plain_model_with_the_adapters_in_it(inputs: Path, tmp_path: Path) -> None:
    merged = run(inputs, tmp_path, settings(**LORA))
    initial = load_file(inputs / "model" / "model.safetensors")
    moved = {name for name, w in merged.items() if not torch.equal(w, initial[name])}
    assert moved and all("attention" in name or "mlp" in name for name in moved)
    tokenizer = load_tokenizer(tmp_path / "output" / "model")
    probes = list(read_rows(inputs / "probes.jsonl", ProbeRow))
    last = list(read_rows(tmp_path / "output" / "probes.jsonl", ProbeScore))[-len(probes) :]
    described = (tmp_path / "output" / "adapter" / "adapter_config.json").read_text()
    assert str(tmp_path) not in described and str(inputs) not in described
    apart = PeftModel.from_pretrained(
        load_language_model(inputs / "model"), tmp_path / "output" / "adapter"
    )
    for model in (load_language_model(tmp_path / "output" / "model"), apart.eval()):
        encoder = Encoder(tokenizer, 48, "error")
        scores = score_probes(ResponseLogits(model), probes, encoder, batch_tokens=16_384)
        for score, other in zip(scores, last, strict=True):
            assert score.logp == pytest.approx(other.logp, abs=1e-4)


@pytest.mark.parametrize("kind", ["rows", "groups", "online pairs"])
def test_a_resumed_run_ends_with_the_same_bits(inputs: Path, tmp_path: Path, kind: str) -> None:
    config: dict[str, Any] = {
        "rows": settings(**LORA),
        "groups": group_settings(**LORA),
        "online pairs": group_settings(**LORA, objective={"name": "dpo"}),
    }
    whole = run(inputs, tmp_path / "whole", config[kind])
    state = tmp_path / "whole" / "resume" / "step-00000003"
    resumed = run(inputs, tmp_path / "resumed", config[kind], state)
    assert distance(whole, resumed) == 0.0


def test_the_reference_is_the_model_without_its_adapters(inputs: Path, tmp_path: Path) -> None:
    """As the copy that a training of all weights keeps: where the policy is still it, KL is 0."""
    run(inputs, tmp_path, group_settings(**LORA, updates_per_rollout=1))
    first, second, *_ = metrics(tmp_path)
    assert first["train/kl"] < 1e-6 < second["train/kl"]
    adapters = load_file(tmp_path / "output" / "adapter" / "adapter_model.safetensors")
    assert all(bool(w.any()) for w in adapters.values())


def test_a_recorded_step_of_the_adapters_replays(inputs: Path, tmp_path: Path) -> None:
    sgd = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.5}
    changes = {**LORA, "optimizer": sgd, "record_steps": [1]}
    run(inputs, tmp_path, group_settings(**changes, steps=2))
    record = StepRecord.load(tmp_path / "output" / "forces" / "step-00000001")
    adapted = PeftModel.from_pretrained(
        load_language_model(inputs / "model"), tmp_path / "output" / "adapter", is_trainable=True
    )
    split = split_step(record, PolicyFunction(adapted, torch.float64))
    assert replay_error(split, record) < 1e-5 + 2 * rounding_floor(record)


def test_layers_that_the_model_lacks_are_named(inputs: Path, tmp_path: Path) -> None:
    config = settings(lora={"target": ["q_proj"]})
    with pytest.raises(ConfigError, match=r"lora\.target.*q_proj"):
        run(inputs, tmp_path, config)
