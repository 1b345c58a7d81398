"""Reference scores kept on disk: the same bits, found by content alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dynolab.data.rows import Example, read_rows, write_rows
from dynolab.training import source
from dynolab.training.loop import train
from models.language import load_language_model, load_tokenizer
from tests.training.small import distance, make_files, make_job, settings, trained_weights


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many examples were scored, one entry a time."""
    counts: list[int] = []
    whole = source.score_sides

    def counted(logits: Any, examples: Any, *more: Any) -> Any:
        counts.append(len(examples))
        return whole(logits, examples, *more)

    monkeypatch.setattr(source, "score_sides", counted)
    return counts


def run(inputs: Path, folder: Path, cache: Path, **changes: Any) -> dict[str, torch.Tensor]:
    config = settings(record_steps=[], probe_every=0, steps=2, **changes)
    job = make_job(inputs, folder, config).model_copy(update={"reference_cache": cache})
    train(job, load_language_model(job.model), load_tokenizer(job.model))
    return trained_weights(job)


def test_arms_of_a_sweep_score_the_reference_once(tmp_path: Path, scored: list[int]) -> None:
    make_files(tmp_path)
    cache = tmp_path / "cache"
    first = run(tmp_path, tmp_path / "first", cache)
    run(tmp_path, tmp_path / "other", cache, objective={"name": "dpo", "beta": 0.5})
    again = run(tmp_path, tmp_path / "again", cache)
    assert scored == [24]
    assert distance(first, again) == 0.0
    assert [file.suffix for file in cache.iterdir()] == [".safetensors"]


def test_other_weights_rows_or_batches_are_scored_anew(tmp_path: Path, scored: list[int]) -> None:
    make_files(tmp_path)
    cache = tmp_path / "cache"
    run(tmp_path, tmp_path / "first", cache)
    run(tmp_path, tmp_path / "batch", cache, micro_batch_size=4)
    make_files(tmp_path / "other", seed=1)
    run(tmp_path / "other", tmp_path / "weights", cache)
    rows = list(read_rows(tmp_path / "train.jsonl", Example))
    write_rows(tmp_path / "train.jsonl", rows[:-1])
    run(tmp_path, tmp_path / "rows", cache)
    assert scored == [24, 24, 24, 23]
