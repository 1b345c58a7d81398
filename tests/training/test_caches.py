"""What trainings keep on disk for others: recorded steps, and the scores of references."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynolab.data.rows import write_rows
from dynolab.errors import ConfigError
from dynolab.store import hash_file
from dynolab.training import examples as source
from dynolab.training.job import TrainJob
from dynolab.training.step_record import TENSORS, RecordCache, StepRecord
from tests.training.small import (
    apart,
    distance,
    make_files,
    make_job,
    make_rows,
    run,
    run_small,
    settings,
    step_record,
)

FILES = ("after.safetensors", "before.safetensors", "optimizer.safetensors")


@pytest.fixture(scope="module")
def records(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[StepRecord]:
    """Steps 1, 3 and 4, which have as many tensors each."""
    config = settings(record_steps=[1, 3, 4], probe_every=0, checkpoint_every=0)
    output = run_small(inputs, tmp_path_factory.mktemp("records"), config).output
    return [StepRecord.load(folder) for folder in sorted((output / "forces").iterdir())]


def saved(records: list[StepRecord], folder: Path) -> list[Path]:
    """Whole records in folders of their own."""
    folders = [folder / f"step-{record.facts.step:08d}" for record in records]
    for record, place in zip(records, folders, strict=True):
        record.save(place)
    return folders


def taken(cache: RecordCache, folders: list[Path]) -> None:
    """Lets the cache take records, each a second after the one before."""
    for second, folder in enumerate(folders):
        before = set(cache.folder.glob("*"))
        cache.take(folder)
        for place in set(cache.folder.glob("*")) - before:
            os.utime(place, (second, second))


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def same(one: StepRecord | None, other: StepRecord) -> bool:
    assert one is not None
    assert (one.facts, one.examples) == (other.facts, other.examples)
    assert one.state.keys() == other.state.keys()
    pairs = [(one.before, other.before), (one.after, other.after)]
    pairs += [(one.state[name], other.state[name]) for name in other.state]
    return all(
        mine.keys() == theirs.keys() and all(mine[name].equal(theirs[name]) for name in theirs)
        for mine, theirs in pairs
    )


def test_the_hashes_of_its_tensors_stay_with_a_record(
    records: list[StepRecord], tmp_path: Path
) -> None:
    folder, *_ = saved(records, tmp_path / "forces")
    hashes = {name: hash_file(folder / name).model_dump() for name in FILES}
    cache = RecordCache(tmp_path / "cache")
    assert same(cache.load(folder), records[0]), "with its own tensors it needs no cache"
    assert cache.holds(folder)
    cache.take(folder)
    assert cache.holds(folder)
    assert {file.name for file in folder.iterdir()} == {"step.json", "batch.jsonl", TENSORS}
    assert json.loads((folder / TENSORS).read_text()) == hashes
    assert same(cache.load(folder), records[0])
    with pytest.raises(ConfigError, match=r"^record = .* holds no weights; read it by RecordCache"):
        StepRecord.load(folder)
    (place,) = cache.folder.iterdir()
    assert {file.name for file in place.iterdir()} == set(FILES)
    (place / FILES[0]).unlink()
    assert not cache.holds(folder)


def test_a_changed_step_clips_to_the_norm_that_it_was_clipped_to(
    records: list[StepRecord],
) -> None:
    record = records[0]
    for clip_norm, factor, bound in ((None, 0.25, 0.5), (None, 1.0, math.inf), (3.0, 0.25, 3.0)):
        facts = record.facts.model_copy(
            update={"clip_norm": clip_norm, "clip_factor": factor, "grad_norm": 2.0}
        )
        changed = replace(record, facts=facts).changed(examples=record.examples[:1])
        assert changed.facts.clip_norm == bound and math.isnan(changed.facts.clip_factor)
        assert changed.examples == record.examples[:1]


def test_a_step_that_is_recorded_again_is_kept_once(
    records: list[StepRecord], tmp_path: Path
) -> None:
    cache = RecordCache(tmp_path / "cache")
    first, again = (saved(records[:1], tmp_path / name)[0] for name in ("first", "again"))
    cache.take(first)
    cache.take(again)
    assert len(list(cache.folder.iterdir())) == 1
    assert (first / TENSORS).read_bytes() == (again / TENSORS).read_bytes()
    assert not list(again.glob("*.safetensors"))


def test_the_cache_stays_under_its_bound_and_gives_up_what_was_unused_longest(
    records: list[StepRecord], tmp_path: Path
) -> None:
    first, second, third = saved(records, tmp_path / "forces")
    size = sum((first / name).stat().st_size for name in FILES)
    cache = RecordCache(tmp_path / "cache", limit_bytes=2 * size + size // 2)
    taken(cache, [first, second])
    assert bytes_in(cache.folder) == 2 * size
    assert same(cache.load(first), records[0])  # so the second is unused for longer
    cache.take(third)
    assert bytes_in(cache.folder) == 2 * size <= cache.limit_bytes
    assert cache.load(second) is None
    assert same(cache.load(first), records[0])
    assert same(cache.load(third), records[2])


def test_the_bound_itself_can_be_filled(records: list[StepRecord], tmp_path: Path) -> None:
    folders = saved(records, tmp_path / "forces")
    size = sum((folders[0] / name).stat().st_size for name in FILES)
    cache = RecordCache(tmp_path / "cache", limit_bytes=3 * size)
    taken(cache, folders)
    assert bytes_in(cache.folder) == cache.limit_bytes


def test_a_record_beyond_the_bound_is_not_kept(records: list[StepRecord], tmp_path: Path) -> None:
    small, large = saved(records[:2], tmp_path / "forces")
    size = sum((small / name).stat().st_size for name in FILES)
    RecordCache(tmp_path / "cache").take(small)
    cache = RecordCache(tmp_path / "cache", limit_bytes=size - 1)
    cache.take(large)
    assert {file.name for file in large.iterdir()} == {"step.json", "batch.jsonl", TENSORS}
    assert cache.load(large) is None
    assert same(cache.load(small), records[0])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["changed", "gone"])
def test_tensors_that_are_not_what_they_were_are_not_read(
    records: list[StepRecord], tmp_path: Path, name: str, harm: str
) -> None:
    folder, *_ = saved(records[:1], tmp_path / "forces")
    cache = RecordCache(tmp_path / "cache")
    cache.take(folder)
    (place,) = cache.folder.iterdir()
    content = bytearray((place / name).read_bytes())
    content[-1] ^= 1
    (place / name).unlink()
    if harm == "changed":
        (place / name).write_bytes(content)
    assert cache.load(folder) is None
    (folder,) = saved(records[:1], tmp_path / "again")
    cache.take(folder)
    assert same(cache.load(folder), records[0])


def test_training_goes_on_where_the_cache_cannot_be_written(
    records: list[StepRecord], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, *_ = saved(records[:1], tmp_path / "forces")
    (tmp_path / "cache").write_text("a file where the cache should be")
    cache = RecordCache(tmp_path / "cache")
    cache.take(folder)
    assert "could not be cached" in caplog.text
    assert not list(folder.glob("*.safetensors"))
    assert cache.load(folder) is None


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
    config = settings(record_steps=[], probe_every=0, steps=3, **changes)
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


def test_a_short_training_scores_the_batches_of_what_it_draws_to_the_same_bits(
    inputs: Path, tmp_path: Path, scored: list[int]
) -> None:
    changes = {"batch_size": 2, "micro_batch_size": 2, "record_steps": [0, 1], "probe_every": 0}
    short, longer = (
        run_small(inputs, tmp_path / str(steps), settings(steps=steps, **changes))
        for steps in (2, 12)
    )
    assert len(scored) == 2 and scored[0] <= 8 and scored[1] == 24
    for step in (0, 1):
        one, other = (step_record(job, step) for job in (short, longer))
        assert one.examples == other.examples
        assert distance(one.after, other.after) == 0.0


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
