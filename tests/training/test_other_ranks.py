"""A training goes on from what other ranks left; a large model is saved in several files."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynolab.errors import ConfigError
from dynolab.results.study import OTHER_RANKS, MetricsLine
from dynolab.store import Store
from dynolab.training import adapters, loop
from dynolab.training.config import TrainConfig
from models.language import load_language_model
from tasks.runtime.stage import Stage, run_stage
from tasks.runtime.work import Work
from tasks.shared.replay import Replay
from tasks.training import newest_state
from tests.runtime.doubles import memory_platform
from tests.training.small import distance, make_files, run_small, settings

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
            replay.run(tmp_path / "output", [last])
        return
    with pytest.raises(ConfigError, match=r"went on at step 5 on another number of ranks \(1\)"):
        replay.run(tmp_path / "output", [last])


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
