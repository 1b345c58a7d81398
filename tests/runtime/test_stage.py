"""How a stage runs: once per key, from its inputs, with its traces kept."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from doubles import MemoryTracking, memory_platform
from pydantic import BaseModel

from dynolab.errors import ConfigError, CorruptData, StoreError
from dynolab.likelihood.checked import note_check
from dynolab.store import Store
from dynolab.store.claim import this_process
from tasks.runtime import stage as stage_module
from tasks.runtime.stage import Platform, Stage, StageResult, lookup, plan_key, run_stage
from tasks.runtime.work import Work
from tests.flows.lab import until


class Make(BaseModel):
    text: str = "hello"
    note: str = ""


class Measure(BaseModel):
    factor: float = 2.0


calls: list[str] = []


@pytest.fixture(autouse=True)
def no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls.clear()
    monkeypatch.setattr(stage_module, "POLL_SECONDS", 0.01)


def make(work: Work[Make]) -> dict[str, float]:
    calls.append(work.config.text)
    (work.output / "data").mkdir()
    (work.output / "data/rows.txt").write_text(work.config.text)
    (work.logs / "stdout.log").write_text(f"made {len(calls)}")
    work.step, work.world_size, work.zero_stage = 3, 2, 1
    return {"rows": 1.0}


def measure(work: Work[Measure]) -> dict[str, float]:
    calls.append("measure")
    note_check("Llama sdpa float32", {"alone": 1e-7, "packed": float("inf")})
    text = (work.input_folder("data", "data") / "rows.txt").read_text()
    return {"length": work.config.factor * len(text)}


MAKE = Stage("make", 1, make, operational=frozenset({"note"}))
MEASURE = Stage("measure", 1, measure)


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return memory_platform(tmp_path / "home")


@pytest.fixture
def store(platform: Platform) -> Store:
    return platform.store


def runs(platform: Platform) -> MemoryTracking:
    return platform.tracking  # type: ignore[return-value]


def test_a_key_is_computed_once(platform: Platform, tmp_path: Path) -> None:
    first = run_stage(MAKE, Make(), {}, platform)
    again = run_stage(MAKE, Make(note="other"), {}, platform)
    assert calls == ["hello"]
    assert not first.cached
    assert again == first.model_copy(update={"cached": True})
    assert (first.metrics, first.key) == ({"rows": 1.0}, plan_key(MAKE, Make(), {}))
    assert lookup(MAKE, first.key, platform) == again
    assert StageResult.model_validate_json(first.model_dump_json()) == first
    later = memory_platform(tmp_path / "home")
    assert run_stage(MAKE, Make(), {}, later).cached
    assert platform.has_worked and not later.has_worked, "a cached study opens no tracking"
    run_stage(MAKE, Make(text="other"), {}, platform)
    assert calls == ["hello", "other"]


def test_the_run_and_the_manifest_tell_where_it_came_from(
    platform: Platform, store: Store, tmp_path: Path
) -> None:
    other = run_stage(MAKE, Make(text="longer text"), {}, platform)
    longer = run_stage(MEASURE, Measure(), {"data": other}, platform)
    assert longer.metrics == {"length": 22.0}, "inputs reach the body, and the key"
    data = run_stage(MAKE, Make(), {}, platform)
    result = run_stage(MEASURE, Measure(), {"data": data}, platform)
    assert run_stage(MEASURE, Measure(), {"data": data}, platform) == result.model_copy(
        update={"cached": True}
    )
    run = runs(platform).runs[-1]
    assert (run.status, run.values) == ("FINISHED", [(0, {"result/length": 10.0})])
    assert run.tagged.items() >= {
        ("stage_key", result.key),
        ("input.data", data.digest),
        ("store.address", result.address),
    }
    assert (run.options["resume_by"], run.options["params"]) == ("stage_key", {})
    manifest = json.loads(run.artifacts["/manifest.json"])
    assert manifest["parents"] == {"data": data.digest}
    assert manifest["mlflow_run_id"] == result.mlflow_run_id == "run-measure"
    assert {"python", "torch"} <= set(manifest["libraries"])
    checks = {"Llama sdpa float32": {"alone": 1e-7, "packed": "fails"}}
    assert manifest["extra"] == {"checks": checks}, "what was measured of models"
    made = store.manifest(data.address, data.digest)
    assert (made.step, made.world_size, made.zero_stage) == (3, 2, 1)
    assert made.config == {"text": "hello", "note": ""}
    assert not list((tmp_path / "home/scratch").iterdir())


def test_a_damaged_input_ends_a_stage_before_its_work(
    platform: Platform, store: Store, tmp_path: Path
) -> None:
    data = run_stage(MAKE, Make(), {}, platform)
    run_stage(MEASURE, Measure(), {"data": data}, platform)
    (file,) = (tmp_path / "home/store").rglob("rows.txt")
    file.write_text("hallo")
    later = memory_platform(tmp_path / "home")
    cached = run_stage(MAKE, Make(), {}, later)
    calls.clear()
    with pytest.raises(CorruptData, match=r"dynolab verify --remove make/\w{12} removes"):
        run_stage(MEASURE, Measure(factor=3.0), {"data": cached}, later)
    assert calls == [] and not later.has_worked


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("boom"), "FAILED"), (KeyboardInterrupt(), "KILLED")]
)
def test_a_failure_keeps_its_logs_and_frees_the_claim(
    error: BaseException, status: str, platform: Platform, store: Store, tmp_path: Path
) -> None:
    def fail(work: Work[Make]) -> dict[str, float]:
        (work.logs / "stdout.log").write_text("so far so good")
        raise error

    with pytest.raises(type(error)):
        run_stage(Stage("make", 1, fail, MAKE.operational), Make(), {}, platform)
    place = store.place("make", plan_key(MAKE, Make(), {}))
    kept = store.files.sizes(f"{place.path}/logs")
    trace, stdout = (store.files.read(f"{place.path}/logs/{name}") for name in sorted(kept))
    assert type(error).__name__.encode() in trace
    assert stdout == b"so far so good"
    assert runs(platform).runs[-1].status == status
    assert place.claim().holder() == ""
    assert not list((tmp_path / "home/scratch").iterdir())
    assert not run_stage(MAKE, Make(), {}, platform).cached


def test_fresh_computes_again_and_replaces(platform: Platform) -> None:
    first = run_stage(MAKE, Make(), {}, platform)
    fresh = run_stage(MAKE, Make(), {}, platform, fresh=True)
    assert calls == ["hello", "hello"]
    assert not fresh.cached
    assert fresh.address != first.address
    assert fresh.digest == first.digest
    assert run_stage(MAKE, Make(), {}, platform).address == fresh.address
    assert runs(platform).runs[-1].options["resume_by"] is None


def trainer(fail_at: int | None) -> Stage[Make]:
    def train(work: Work[Make]) -> dict[str, float]:
        start = 0
        if (newest := work.newest_resume()) is not None:
            start, folder = newest
            assert (folder / "state.txt").read_text() == str(start)
        for step in range(start + 1, 4):
            calls.append(f"step {step}")
            state = work.scratch / f"state-{step}"
            state.mkdir()
            (state / "state.txt").write_text(str(step))
            work.commit_resume(step, state)
            if step == fail_at:
                raise RuntimeError("power cut")
        return {}

    return Stage("train", 1, train)


@pytest.mark.parametrize(
    ("fresh", "again"), [(False, ["step 3"]), (True, ["step 1", "step 2", "step 3"])]
)
def test_a_failed_run_goes_on_from_its_newest_state_unless_it_is_to_be_fresh(
    fresh: bool, again: list[str], platform: Platform, store: Store
) -> None:
    with pytest.raises(RuntimeError):
        run_stage(trainer(fail_at=2), Make(), {}, platform)
    result = run_stage(trainer(fail_at=None), Make(), {}, platform, fresh=fresh)
    assert calls == ["step 1", "step 2", *again]
    assert store.files.children(f"stages/train/{result.key}/resume") == []


def away(*_: object, **__: object) -> None:
    raise StoreError("the store is away")


def test_a_resume_state_that_cannot_be_kept_does_not_end_training(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dynolab.store.store.Place.commit_resume", away)
    run_stage(trainer(fail_at=None), Make(), {}, platform)
    assert "without a resume state of step 3: the store is away" in caplog.text


def test_a_store_that_is_away_at_the_end_is_waited_for(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dynolab.store import store as store_module

    monkeypatch.setattr(stage_module, "COMMIT_PAUSES", (0.0, 0.0))
    outcomes = iter([away, away, store_module.commit])
    monkeypatch.setattr(store_module, "commit", lambda *a, **k: next(outcomes)(*a, **k))
    assert not run_stage(MAKE, Make(), {}, platform).cached
    assert run_stage(MAKE, Make(), {}, platform).cached


def test_a_bad_config_is_told_before_any_work(platform: Platform) -> None:
    with pytest.raises(ConfigError, match=r"config\.factor = nan"):
        run_stage(MEASURE, Measure(factor=float("nan")), {}, platform)
    assert calls == []


@pytest.mark.parametrize("fresh", [False, True])
def test_of_two_runs_of_a_key_one_computes_and_the_other_takes_its_result(
    fresh: bool, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun, may_finish = threading.Event(), threading.Event()

    def slow(work: Work[Make]) -> dict[str, float]:
        calls.append("slow")
        begun.set()
        assert may_finish.wait(60)
        return {}

    def run(home: str) -> StageResult:
        platform = memory_platform(tmp_path / home, store)
        return run_stage(Stage("slow", 1, slow), Make(), {}, platform, fresh=fresh)

    with ThreadPoolExecutor(2) as runs, caplog.at_level(logging.INFO):
        first = runs.submit(run, "one")
        assert begun.wait(60)
        second = runs.submit(run, "other")
        until(lambda: "waiting for process" in caplog.text, 60)
        may_finish.set()
        one, other = first.result(), second.result()
    assert calls == ["slow"]
    assert not one.cached
    assert other == one.model_copy(update={"cached": True})


def test_a_killed_run_is_succeeded(platform: Platform, store: Store) -> None:
    place = store.place("make", plan_key(MAKE, Make(), {}))
    killed = this_process() | {"owner": "x", "started": "1"}
    store.files.create(f"{place.path}/CLAIM", json.dumps(killed).encode())
    assert not run_stage(MAKE, Make(), {}, platform).cached
    assert place.claim().holder() == ""
