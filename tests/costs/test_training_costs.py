"""A small training takes the batches, the memory and the bytes that its plan says."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from dynolab.costs.batches import lengths_of, micro_batches
from dynolab.costs.memory import training_bytes
from dynolab.costs.shape import shape_of
from dynolab.costs.traced import LiveBytes, MicroBatch, activation_bytes
from dynolab.training.examples import Examples, training_encoder
from dynolab.training.job import TrainJob
from dynolab.training.step_passes import StepPasses
from models.language import load_tokenizer
from models.unloaded import builder, read_config
from tests.benchmarks.models import pythia
from tests.training.small import make_files, make_job, make_tokenizer, run, settings


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small rows, and a model whose weights outweigh its activations."""
    folder = tmp_path_factory.mktemp("inputs")
    make_files(folder)
    for file in (folder / "model").iterdir():
        file.unlink()
    pythia(vocab_size=512, hidden_size=128, num_hidden_layers=3).save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    return folder


def batches_of(job: TrainJob) -> list[MicroBatch]:
    config = job.config
    encoder = training_encoder(config, load_tokenizer(job.model), 2048)
    rows = Examples(job.examples, encoder, config.objective)
    sides = (0,) if config.objective.name == "sft" else (0, 1)
    return list(micro_batches(config, [lengths_of(row, sides, 128) for row in rows], config.steps))


@pytest.mark.parametrize("objective", ["sft", "dpo"])
def test_batches(
    objective: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    tokens = StepPasses.tokens

    def watched(passes: StepPasses, *arguments: Any) -> Any:
        batch = tokens(passes, *arguments)
        seen.append(MicroBatch(*batch.input_ids.shape, len(batch.token)))
        return batch

    monkeypatch.setattr(StepPasses, "tokens", watched)
    config = settings(objective={"name": objective}, record_steps=[], checkpoint_every=0)
    job = run(make_job(inputs, tmp_path, config))
    assert batches_of(job) == seen


@pytest.mark.parametrize(
    ("optimizer", "accumulation", "recorded"),
    [("adamw", 1, []), ("rmsprop", 2, []), ("sgd", 1, [1]), ("adamw", 2, [1])],
)
def test_memory(
    optimizer: str, accumulation: int, recorded: list[int], inputs: Path, tmp_path: Path
) -> None:
    config = settings(
        optimizer={"name": optimizer, "learning_rate": 1e-6},
        batch_size=4,
        micro_batch_size=4 // accumulation,
        steps=3,
        probe_every=0,
        checkpoint_every=0,
        record_steps=recorded,
    )
    job = make_job(inputs, tmp_path, config)
    build = builder(read_config(str(job.model)))
    shape = shape_of(build(3, torch.float32))
    largest = max(batches_of(job), key=lambda batch: (batch.rows * batch.length, batch.length))
    planned = training_bytes(config, shape, activation_bytes(build, 3, largest), gpus=False)
    gc.collect()
    with LiveBytes() as live:
        run(job)
    assert live.most == pytest.approx(planned.rank, rel=0.1)
