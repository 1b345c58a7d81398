"""Two processes and one key: one computes, the other takes its result, or its place."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from doubles import memory_platform
from pydantic import BaseModel

from dynolab.store import Claim, Store
from tasks.runtime import stage as stage_module
from tasks.runtime.stage import Stage, StageResult, run_stage
from tasks.runtime.work import Work
from tests.flows.lab import until

DEADLINE_SECONDS = 60
SPAWN = multiprocessing.get_context("spawn")


class Slow(BaseModel):
    home: str


def slow(work: Work[Slow]) -> dict[str, float]:
    """Tells that it computes, then waits until it may finish."""
    home = Path(work.config.home)
    (home / f"computes-{uuid4().hex}").write_text(str(os.getpid()))
    (work.output / "result.txt").write_text("done")
    until(lambda: (home / "may-finish").exists(), DEADLINE_SECONDS)
    return {"pid": float(os.getpid())}


STAGE = Stage("slow", 1, slow)


def compute(home: Path, settings: dict[str, Any], fresh: bool = False) -> None:
    stage_module.POLL_SECONDS = 0.05
    genuine = Claim.try_acquire

    def noted(claim: Claim) -> bool:
        held = genuine(claim)
        home.joinpath(f"asked-{os.getpid()}").touch()
        return held

    Claim.try_acquire = noted  # type: ignore[method-assign]
    platform = memory_platform(home, Store(cache=home / "cache", **settings))
    result = run_stage(STAGE, Slow(home=str(home)), {}, platform, fresh=fresh)
    home.joinpath(f"result-{os.getpid()}").write_text(result.model_dump_json())


def start(*arguments: Any) -> BaseProcess:
    process = SPAWN.Process(target=compute, args=arguments, daemon=True)
    process.start()
    return process


def result_of(process: BaseProcess, home: Path) -> StageResult:
    process.join(DEADLINE_SECONDS)
    assert process.exitcode == 0
    return StageResult.model_validate_json((home / f"result-{process.pid}").read_text())


def computing(home: Path) -> list[int]:
    return [int(path.read_text() or 0) for path in home.glob("computes-*")]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.mark.parametrize("fresh", [False, True])
def test_one_computes_and_the_other_takes_its_result(
    fresh: bool, home: Path, store_settings: dict[str, Any]
) -> None:
    both = [start(home, store_settings, fresh) for _ in range(2)]
    until(lambda: len(list(home.glob("asked-*"))) == 2 and computing(home), DEADLINE_SECONDS)
    (home / "may-finish").touch()
    one, other = (result_of(process, home) for process in both)
    assert len(computing(home)) == 1
    assert {one.cached, other.cached} == {False, True}
    assert one.address == other.address
    assert one.metrics == other.metrics == {"pid": float(computing(home)[0])}


def test_the_survivor_takes_the_place_of_the_killed(
    home: Path, store_settings: dict[str, Any]
) -> None:
    first = start(home, store_settings)
    until(lambda: computing(home), DEADLINE_SECONDS)
    second = start(home, store_settings)
    until(lambda: (home / f"asked-{second.pid}").exists(), DEADLINE_SECONDS)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    (home / "may-finish").touch()
    result = result_of(second, home)
    assert not result.cached
    assert len(computing(home)) == 2
