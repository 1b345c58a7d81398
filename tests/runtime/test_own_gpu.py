"""The GPU that a stage of this process computes on; the devices here are names alone."""

from __future__ import annotations

import importlib.metadata
import logging
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from doubles import memory_platform
from pydantic import BaseModel
from test_devices import free_devices

from dynolab import distributed
from dynolab.errors import ConfigError
from tasks.runtime.launch import devices
from tasks.runtime.launch.devices import gpu_lent_to_ranks, hold_devices
from tasks.runtime.stage import Stage, run_stage
from tasks.runtime.work import Work

NAMES = ("2", "3")


class Settings(BaseModel):
    computes: bool = True


used: list[torch.device] = []
events: list[str] = []


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with four GPUs, of which stages may use two."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(devices, "POLL_SECONDS", 0.01)
    monkeypatch.setenv("DYNOLAB_DEVICES", ",".join(NAMES))
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: events.append(f"set {number}"))
    monkeypatch.setattr(
        torch.cuda, "empty_cache", lambda: events.append(f"free, {free_devices()} unlocked")
    )
    used.clear()
    events.clear()


def body(work: Work[Settings]) -> dict[str, float]:
    events.append(f"body, {free_devices()} unlocked")
    if work.config.computes:
        used.extend(distributed.device() for _ in range(2))
        events.append(f"computed, {free_devices()} unlocked")
    return {}


def run(home: Path, **settings: bool) -> None:
    run_stage(Stage("stage", 1, body), Settings(**settings), {}, memory_platform(home), fresh=True)


def test_a_stage_locks_a_gpu_when_it_first_computes_and_gives_memory_back_before_the_lock(
    tmp_path: Path,
) -> None:
    run(tmp_path)
    assert used == [torch.device("cuda", 0)] * 2
    assert events == [
        "body, ['0', '1', '2', '3'] unlocked",
        "set 0",
        "computed, ['0', '1', '3'] unlocked",
        "free, ['0', '1', '3'] unlocked",
    ]
    assert free_devices() == ["0", "1", "2", "3"]


def test_a_stage_that_does_not_compute_locks_nothing(tmp_path: Path) -> None:
    with hold_devices(2, NAMES):
        run(tmp_path, computes=False)
    assert used == [] and "set 0" not in events


def test_a_stage_waits_for_a_gpu_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    computing = threading.Thread(target=run, args=(tmp_path,), daemon=True)
    with caplog.at_level(logging.WARNING), hold_devices(2, NAMES):
        computing.start()
        computing.join(0.3)
        assert computing.is_alive() and used == []
    computing.join(20)
    assert used
    assert len(caplog.records) == 1


def test_ranks_that_a_stage_launches_may_have_its_gpu(tmp_path: Path) -> None:
    def launches(work: Work[Settings]) -> dict[str, float]:
        distributed.device()
        with gpu_lent_to_ranks(), hold_devices(2, NAMES) as held:
            assert list(held) == list(NAMES)
        assert free_devices() == ["0", "1", "3"]
        return {}

    run_stage(Stage("stage", 1, launches), Settings(), {}, memory_platform(tmp_path))


def test_a_stage_that_fails_leaves_no_lock(tmp_path: Path) -> None:
    def fails(work: Work[Settings]) -> dict[str, float]:
        distributed.device()
        raise ConfigError("field", 1, "remedy")

    with pytest.raises(ConfigError):
        run_stage(Stage("stage", 1, fails), Settings(), {}, memory_platform(tmp_path))
    assert free_devices() == ["0", "1", "2", "3"]
    assert distributed.device() == torch.device("cuda", 0)


def test_a_stage_refuses_gpus_that_torch_cannot_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run(tmp_path)  # there are none here, whatever the list says
    assert used == [torch.device("cpu")] * 2
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(devices, "_DEVICES", tmp_path)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    with pytest.raises(ConfigError, match=r"CUDA_VISIBLE_DEVICES = '2,3': torch .* cannot use"):
        run(tmp_path)
