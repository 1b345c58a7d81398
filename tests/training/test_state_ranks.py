"""A resume state of many ranks: who writes what, and when it counts."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynolab.training import resume
from dynolab.training.job import TrainJob
from dynolab.training.resume import _await_parts, _sizes
from tests.training.ranks_played import play
from tests.training.states import LOADED, change_facts, files, load, save, warning

SHARD = "engine/shard-1.safetensors"


def test_another_rank_writes_its_part_beside_the_first_one_s_and_commits_nothing(
    started: TrainJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, 1, 2)
    unfinished = started.resume_out / ".step-00000003.unfinished"
    unfinished.mkdir()
    (unfinished / "state.json").write_text("of rank 0")
    save(started)
    assert [path.name for path in started.resume_out.iterdir()] == [unfinished.name]
    assert files(unfinished) == [
        "engine/part",
        "random-1.json",
        "random-1.safetensors",
        "source/part",
        "state.json",
    ]
    assert (unfinished / "state.json").read_text() == "of rank 0"


@pytest.mark.parametrize(
    ("trouble", "sizes", "message"),
    [
        ("OSError: disk full", {}, "OSError: disk full"),
        (None, {SHARD: 5}, f"{SHARD}, written on another host, is still not visible on this one"),
    ],
    ids=["it could not write", "this host never sees its part"],
)
def test_another_rank_s_trouble_costs_the_state(
    trouble: str | None,
    sizes: dict[str, int],
    message: str,
    started: TrainJob,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def gather(mine: Any) -> list[Any]:
        return [mine, {**mine, **sizes} if isinstance(mine, dict) else trouble]

    play(monkeypatch, 0, 2, gather)
    monkeypatch.setattr(resume, "ARRIVE_SECONDS", 0.0)
    save(started)
    assert warning(caplog).endswith(f"without a resume state of step 3: {message}")
    assert list(started.resume_out.iterdir()) == []


def test_another_rank_reads_its_own_part_and_leaves_the_results_to_the_first(
    started: TrainJob, later: TrainJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(started)
    for suffix in (".json", ".safetensors"):
        (folder / f"random-0{suffix}").rename(folder / f"random-1{suffix}")
    # What belongs to another training is rank 0's to refuse: the others do not hash files.
    change_facts(folder, inputs={}, ranks=2)
    play(monkeypatch, 1, 2, lambda mine: [None, mine])
    assert load(folder, later) == LOADED
    assert not later.output.exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What this host's rank has written."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "shard-0.safetensors").write_bytes(b"mine")
    return tmp_path


def test_what_other_hosts_wrote_is_waited_for(folder: Path) -> None:
    mine = _sizes(folder)
    theirs = {"engine/shard-0.safetensors": 0, SHARD: 6}  # seen too early

    def arrive() -> None:
        time.sleep(0.2)
        (folder / SHARD).write_bytes(b"theirs")

    writing = threading.Thread(target=arrive)
    writing.start()
    assert _await_parts([mine, theirs], folder) is None
    writing.join()
    assert _sizes(folder)[SHARD] == 6


@pytest.mark.parametrize("size", [None, 3])
def test_a_part_that_never_arrives_whole_costs_the_state(
    size: int | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "ARRIVE_SECONDS", 0.2)
    if size is not None:
        (folder / SHARD).write_bytes(b"x" * size)
    error = _await_parts([{SHARD: 6}], folder)
    assert error == f"{SHARD}, written on another host, is still not visible on this one"


def test_an_empty_file_arrives_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert _await_parts([{"empty": 0}], tmp_path) is None


def test_parts_are_looked_for_ten_times_a_second_as_long_as_they_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(resume, "time", clock)
    error = _await_parts([{"b": 2, "a": 1}], tmp_path)
    assert error == "a, written on another host, is still not visible on this one"
    assert set(pauses) == {0.1}
    assert sum(pauses) == pytest.approx(90, abs=0.2)
