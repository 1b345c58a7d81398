"""Reference scores kept on disk: the same bits, found by content alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynolab.data.rows import write_rows
from dynolab.training import examples as source
from dynolab.training.job import TrainJob
from tests.training.small import apart, make_files, make_job, make_rows, run, settings


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


def run_cached(inputs: Path, folder: Path, cache: Path, **changes: Any) -> TrainJob:
    config = settings(record_steps=[], probe_every=0, steps=2, **changes)
    return run(make_job(inputs, folder, config).model_copy(update={"reference_cache": cache}))


def test_arms_of_a_sweep_score_the_reference_once(
    inputs: Path, tmp_path: Path, scored: list[int]
) -> None:
    cache = tmp_path / "cache"
    first = run_cached(inputs, tmp_path / "first", cache)
    run_cached(inputs, tmp_path / "other", cache, objective={"name": "dpo", "beta": 0.5})
    again = run_cached(inputs, tmp_path / "again", cache)
    assert scored == [24]
    assert apart(first, again) == 0.0
    assert [file.suffix for file in cache.iterdir()] == [".safetensors"]


def test_other_weights_rows_or_batches_are_scored_anew(
    inputs: Path, tmp_path: Path, scored: list[int]
) -> None:
    cache, other = tmp_path / "cache", tmp_path / "inputs"
    make_files(other, seed=1)
    run_cached(inputs, tmp_path / "first", cache)
    run_cached(inputs, tmp_path / "batch", cache, micro_batch_size=4)
    run_cached(other, tmp_path / "weights", cache)
    write_rows(other / "train.jsonl", make_rows()[:-1])
    run_cached(other, tmp_path / "rows", cache)
    assert scored == [24, 24, 24, 23]
