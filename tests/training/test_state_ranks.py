"""Resume states of many ranks: who writes what, when it counts, and how others go on from it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dynolab.errors import ConfigError
from dynolab.results.study import OTHER_RANKS, MetricsLine
from dynolab.store import Store
from dynolab.training import adapters, loop, resume
from dynolab.training.config import TrainConfig
from dynolab.training.job import TrainJob
from dynolab.training.resume import _await_parts, _sizes
from models.language import load_language_model
from tasks.runtime.stage import Stage, run_stage
from tasks.runtime.work import Work
from tasks.shared.replay import Replay
from tasks.training import newest_state
from tests.runtime.doubles import memory_platform
from tests.training.ranks_played import play
from tests.training.small import distance, make_files, run_small, settings
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


found: list[int | None] = []


def train(work: Work[TrainConfig]) -> dict[str, float]:
    """Notes the state that it goes on from, leaves one five steps later, and dies."""
    state = newest_state(work)
    found.append(state and state[0])
    left = work.scratch / "state"
    left.mkdir()
    work.commit_resume(5 + (state[0] if state else 0), left)
    raise RuntimeError("power cut")


def test_states_of_other_ranks_are_found_unless_it_is_to_be_fresh(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store", cache=tmp_path / "cache")
    platform = memory_platform(tmp_path / "home", store)
    found.clear()
    for ranks, stage, fresh in ((2, 2, False), (1, 2, True), (4, 3, False), (2, 2, False)):
        config = settings(engine={"kind": "deepspeed", "ranks": ranks, "zero_stage": stage})
        with pytest.raises(RuntimeError, match="power cut"):
            run_stage(Stage("train", 1, train), config, {}, platform, fresh=fresh)
    other = settings(engine={"kind": "deepspeed", "ranks": 1}, seed=7)
    with pytest.raises(RuntimeError, match="power cut"):
        run_stage(Stage("train", 1, train), other, {}, platform)
    assert found == [None, None, 5, 5, None]


@pytest.mark.parametrize("last", [4, 5, 6])
def test_a_replay_is_refused_from_where_other_ranks_went_on(last: int, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    line = MetricsLine(step=5, examples=40, time=0.0, metrics={OTHER_RANKS: 1.0})
    metrics.write_text(line.model_dump_json() + "\n")

    class Began(Exception):
        pass

    class Starts:
        @property
        def logs(self) -> Path:
            raise Began

    replay = Replay(Starts(), settings(record_steps=[]), tmp_path, tmp_path, metrics)  # type: ignore[arg-type]
    if last < 5:
        with pytest.raises(Began):
            replay.run(tmp_path / "output", [last], tmp_path / "states")
        return
    with pytest.raises(ConfigError, match=r"went on at step 5 on another number of ranks \(1\)"):
        replay.run(tmp_path / "output", [last], tmp_path / "states")


@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["weights", "adapters"])
def test_a_large_model_is_saved_in_files_that_readers_join(
    lora: dict[str, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_files(tmp_path)
    config = settings(steps=2, warmup_steps=0, record_steps=[], lora=lora)
    whole = run_small(tmp_path, tmp_path / "whole", config)
    for room in (loop, adapters):
        monkeypatch.setattr(room, "FILE_BYTES", 20_000)
    parted = run_small(tmp_path, tmp_path / "parted", config)
    folder = parted.output / "model"
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    read = load_language_model(folder).state_dict()
    assert distance(load_language_model(whole.output / "model").state_dict(), read) == 0.0
    # What is trained next, from several files, is the same training.
    again = parted.model_copy(update={"model": folder})
    assert len([name for name in again.input_digests() if name.startswith("model-")]) > 1
