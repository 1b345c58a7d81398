"""GPUs of a host, locked for jobs, ranks and stages; the devices here are names alone."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import pwd
import re
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from doubles import memory_platform
from pydantic import BaseModel

from dynolab import distributed
from dynolab.errors import ConfigError
from tasks.runtime.launch import devices
from tasks.runtime.launch.devices import (
    check_enough,
    check_usable,
    gpu_lent_to_ranks,
    hide_other_devices,
    hold_devices,
    host_devices,
)
from tasks.runtime.launch.launcher import launch_ranks
from tasks.runtime.stage import Stage, run_stage
from tasks.runtime.work import Work
from tests.flows.lab import until

FOUR = ("0", "1", "2", "3")


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(devices, "POLL_SECONDS", 0.01)


class Job(threading.Thread):
    """Holds devices until it is told to end."""

    def __init__(self, count: int) -> None:
        super().__init__(daemon=True)
        self.count = count
        self.held: list[str] = []
        self.may_end = threading.Event()
        self.start()

    def run(self) -> None:
        with hold_devices(self.count, FOUR) as held:
            self.held = list(held)
            assert self.may_end.wait(20)

    def end(self) -> None:
        self.may_end.set()
        self.join(20)


def test_jobs_get_devices_of_their_own_and_many_are_not_passed_over_by_few() -> None:
    small = [Job(1), Job(1)]
    until(lambda: all(job.held for job in small))
    assert small[0].held != small[1].held
    large = Job(4)
    until(lambda: free_devices() == [])  # the two that are free wait for it
    later = Job(1)
    small[0].end()
    time.sleep(0.1)
    assert not later.held and not large.held
    small[1].end()
    until(lambda: large.held)
    assert not later.held
    large.end()
    until(lambda: later.held)
    later.end()


@pytest.mark.parametrize(
    ("version", "environment", "expected"),
    [
        ("2.13.0", {}, ("0", "1")),
        ("2.13.0", {"CUDA_VISIBLE_DEVICES": "1, GPU-8f2a"}, ("1", "GPU-8f2a")),
        ("2.13.0", {"DYNOLAB_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "1"}, ("3",)),
        ("2.13.0", {"CUDA_VISIBLE_DEVICES": ""}, ()),
        ("2.13.0", {"DS_ACCELERATOR": "cpu"}, ()),
        ("2.13.0+cpu", {}, ()),
    ],
)
def test_devices_are_those_listed_or_visible_or_all(
    version: str,
    environment: dict[str, str],
    expected: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("nvidia0", "nvidia5", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(devices, "_DEVICES", tmp_path)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    assert host_devices(environment) == expected


@pytest.mark.parametrize("there", [True, False])
def test_stages_in_this_process_see_the_listed_devices_alone(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "gpus_visible", lambda _: there)
    with patch.dict(os.environ, CUDA_VISIBLE_DEVICES="0"):
        for name in ("DYNOLAB_DEVICES", "DS_ACCELERATOR"):
            os.environ.pop(name, None)
        hide_other_devices()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
        assert os.environ.get("DS_ACCELERATOR") == (None if there else "cpu")
        os.environ["DYNOLAB_DEVICES"] = "3, 1"
        hide_other_devices()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,1"


@pytest.mark.parametrize("listed", ["0,0", "0,", "../x", "a b", "-1"])
def test_what_is_no_list_of_enough_devices_is_refused(listed: str) -> None:
    with pytest.raises(ConfigError, match=r"DYNOLAB_DEVICES = .*list each device once"):
        host_devices({"DYNOLAB_DEVICES": listed})
    with pytest.raises(ConfigError, match=r"ranks = 5: this host has 4 GPUs \(0, 1, 2, 3\)"):
        check_enough("ranks", 5, FOUR)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": "-1"},
        {"CUDA_VISIBLE_DEVICES": "0", "DS_ACCELERATOR": "cpu"},
    ],
)
def test_a_rank_without_gpus_computes_on_the_cpu(environment: dict[str, str]) -> None:
    check_usable(environment)


OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 11040)."


@pytest.mark.parametrize("reason", [OLD_DRIVER, None])
def test_gpus_that_torch_cannot_use_are_refused(
    reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init() -> None:
        if reason:
            raise RuntimeError(f"{reason}\nPlease update your GPU driver.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    remedy = re.escape(f"cannot use these GPUs ({reason or 'it finds none'}); install a torch")
    with pytest.raises(ConfigError, match=rf"CUDA_VISIBLE_DEVICES = '0,1': torch .* {remedy}"):
        check_usable({"CUDA_VISIBLE_DEVICES": "0,1"})


def free_devices(names: Sequence[str] = FOUR) -> list[str]:
    """The devices whose lock nobody holds, asked for one moment."""
    with ExitStack() as asked:
        return [
            name for name in names if devices._lock(f"device-{name}", asked, wait=False) is not None
        ]


@pytest.mark.ranks
def test_ranks_see_the_devices_that_their_job_holds_and_stay_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNOLAB_DEVICES", ",".join(FOUR))
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0+cpu")
    (tmp_path / "job.json").write_text(
        json.dumps({"folder": str(tmp_path), "ranks": {"0": [], "1": []}})
    )
    free_meanwhile: list[list[str]] = []
    with hold_devices(1, FOUR) as others:
        launch_ranks(
            "fake_rank",
            tmp_path / "job.json",
            ranks=2,
            logs=tmp_path / "logs",
            environment={"PYTHONPATH": str(Path(__file__).parent)},
            while_running=lambda: free_meanwhile.append(free_devices()),
            poll_seconds=0.05,
        )
    seen = [json.loads((tmp_path / f"rank-{n}.json").read_text())["environment"] for n in (0, 1)]
    given = {(rank["CUDA_VISIBLE_DEVICES"], rank["DS_ACCELERATOR"]) for rank in seen}
    assert given == {("1,2", "cpu")} and list(others) == ["0"]
    assert all(free == ["3"] for free in free_meanwhile) and free_meanwhile
    assert free_devices() == list(FOUR)


def test_who_is_first_in_the_queue_and_stays_there_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(devices, "SILENT_SECONDS", 0.05)
    with ExitStack() as others:
        devices._lock("queue-devices", others, wait=True)
        job = Job(1)
        until(lambda: caplog.records, 20)
    job.may_end.set()
    job.join(20)
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert f"process {os.getpid()} of user {user} is first in their queue" in caplog.text
    assert "queue-devices.lock" in caplog.text and len(caplog.records) == 1


NAMES = ("2", "3")


class Settings(BaseModel):
    computes: bool = True


used: list[torch.device] = []
events: list[str] = []


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with four GPUs, of which stages may use two."""
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


@pytest.mark.usefixtures("host")
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


@pytest.mark.usefixtures("host")
def test_a_stage_that_computes_waits_for_a_gpu_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    computing = threading.Thread(target=run, args=(tmp_path,), daemon=True)
    with caplog.at_level(logging.WARNING), hold_devices(2, NAMES):
        run(tmp_path, computes=False)
        assert events == ["body, ['0', '1'] unlocked", "free, ['0', '1'] unlocked"]
        computing.start()
        computing.join(0.3)
        assert computing.is_alive() and used == []
    computing.join(20)
    assert used
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("host")
def test_ranks_of_a_stage_may_have_its_gpu_and_a_failure_leaves_no_lock(tmp_path: Path) -> None:
    def launches(work: Work[Settings]) -> dict[str, float]:
        distributed.device()
        with gpu_lent_to_ranks(), hold_devices(2, NAMES) as held:
            assert list(held) == list(NAMES)
        assert free_devices() == ["0", "1", "3"]
        raise ConfigError("field", 1, "remedy")

    with pytest.raises(ConfigError, match="field = 1"):
        run_stage(Stage("stage", 1, launches), Settings(), {}, memory_platform(tmp_path))
    assert free_devices() == ["0", "1", "2", "3"]
    assert distributed.device() == torch.device("cuda", 0)


@pytest.mark.usefixtures("host")
def test_a_stage_refuses_gpus_that_torch_cannot_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run(tmp_path)  # there are none here, though the list names some
    assert used == [torch.device("cpu")] * 2
    monkeypatch.setattr(devices, "gpus_visible", lambda _: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    with pytest.raises(ConfigError, match=r"CUDA_VISIBLE_DEVICES = '2,3': torch .* cannot use"):
        run(tmp_path)
