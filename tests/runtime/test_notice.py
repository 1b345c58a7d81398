"""SIGTERM as a notice: a training saves its state, its processes are shielded meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.runtime.launch import notice
from tasks.runtime.launch.notice import Notice, sigterm_as_interrupt
from tasks.runtime.system.child import GRACE
from tasks.runtime.system.processes import start_child, stop_group
from tests.training.small import apart, make_files, make_job, run, run_small, settings, state


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_asks_first_and_is_handed_on(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with sigterm_as_interrupt():
        with Notice(60, stop) as given:
            given.hand_on()
            assert not stop.exists()
            terminate()
            terminate()
            assert stop.exists()
            given.check()
            with pytest.raises(KeyboardInterrupt):
                given.hand_on()
        with pytest.raises(KeyboardInterrupt):
            terminate()


def test_time_is_up_after_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(notice, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with sigterm_as_interrupt(), Notice(60) as given:
        terminate()
        now[0] = 60.0
        given.check()
        now[0] = 60.1
        with pytest.raises(KeyboardInterrupt):
            given.check()


def test_without_seconds_a_signal_ends_the_process_at_once() -> None:
    with sigterm_as_interrupt(), Notice(0), pytest.raises(KeyboardInterrupt):
        terminate()


def test_children_are_shielded_and_end_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GRACE, "60")
    log = tmp_path / "log"
    child = start_child("http.server", ["0"], environment=dict(os.environ), log=log)
    while b"Serving" not in log.read_bytes():
        assert child.poll() is None
    os.kill(child.pid, signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.2)
    stop_group(child)
    assert child.returncode != -signal.SIGKILL


def test_a_training_that_is_asked_to_stop_saves_its_state_and_goes_on(tmp_path: Path) -> None:
    make_files(tmp_path)
    config = settings(checkpoint_every=0, record_steps=[])
    whole = run_small(tmp_path, tmp_path / "whole", config)
    asked = make_job(tmp_path, tmp_path / "asked", config)
    asked.stop.touch()
    run(asked)
    assert not (asked.output / "summary.json").exists()
    resumed = run_small(tmp_path, tmp_path / "resumed", config, state(asked, 1))
    assert apart(whole, resumed) == 0.0
