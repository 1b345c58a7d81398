"""Children are tied to their parent, work folders go with their owner, SIGTERM is a notice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.runtime.launch import notice
from tasks.runtime.launch.notice import Notice, sigterm_as_interrupt
from tasks.runtime.system.child import GRACE, STARTER, starter
from tasks.runtime.system.processes import (
    Process,
    free_port,
    kill_marked,
    last_lines,
    listening_socket,
    marked_processes,
    port_in_use,
    start_child,
    stop_group,
)
from tasks.runtime.system.scratch import scratch_folder
from tests.flows.lab import ROOT, until
from tests.training.small import apart, make_files, make_job, run, run_small, settings, state


def _start(tmp_path: Path, code: str, **variables: str) -> Process:
    (tmp_path / "program.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), **variables}
    return start_child("program", ["x"], environment=environment, log=tmp_path / "log")


def test_a_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    started: list[Process] = []
    code = "import sys, time; print(sys.argv[1:], flush=True); time.sleep(0.5); sys.exit(3)"
    thread = threading.Thread(target=lambda: started.append(_start(tmp_path, code)))
    thread.start()
    thread.join()
    assert started[0].wait(20) == 3
    assert last_lines(tmp_path / "log") == ["['x']"]


def test_a_child_whose_parent_is_gone_ends_at_once() -> None:
    command = [sys.executable, "-m", "tasks.runtime.system.child", str(os.getppid()), "this"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=20)
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGKILL, b"")


def test_a_rank_whose_launcher_ended_while_it_loaded_ends_at_once() -> None:
    code = "from tasks.runtime.launch.rank_entry import main; main(None)"
    gone = f"{os.uname().nodename} {os.getppid()}"  # another process than the rank's parent
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {STARTER: gone},
        capture_output=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGKILL, b"")


def test_another_host_s_starter_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STARTER, f"another {os.getpid()}")
    assert starter() == os.getppid()
    monkeypatch.delenv(STARTER)
    assert starter() == os.getppid()


def test_stopping_goes_from_sigterm_to_sigkill(tmp_path: Path) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('deaf', flush=True); time.sleep(100)"
    )
    child = _start(tmp_path, code)
    until(lambda: last_lines(tmp_path / "log") == ["deaf"], 20)
    stop_group(child, grace_seconds=0.1)
    assert child.returncode == -signal.SIGKILL


def test_marked_processes_are_found_and_killed_in_any_session(tmp_path: Path) -> None:
    code = (
        "import subprocess; subprocess.Popen(['sleep', '100'], start_new_session=True);"
        "print('started', flush=True)"
    )
    child = _start(tmp_path, code, DYNOLAB_TEST_MARK=str(tmp_path))
    child.wait(20)
    marker = f"DYNOLAB_TEST_MARK={tmp_path}"
    assert len(marked_processes(marker)) == 1
    kill_marked(marker)
    assert marked_processes(marker) == []


def test_ports_and_logs(tmp_path: Path) -> None:
    with listening_socket() as listener:
        port = listener.getsockname()[1]
        assert port_in_use(port)
        with pytest.raises(OSError, match="in use"):
            listening_socket(port)
    assert not port_in_use(port) and not port_in_use(free_port())
    log = tmp_path / "log"
    assert last_lines(log) == []
    log.write_bytes(b"x\n" * 100_000 + b"\n\xff end\n\n")
    assert last_lines(log, 2) == ["x", "\ufffd end"]


HOLD = """
import pathlib, sys, time
from tasks.runtime.system.scratch import scratch_folder
with scratch_folder(pathlib.Path(sys.argv[1]), sys.argv[2]) as folder:
    (folder / "file").write_text("work")
    print("holds", flush=True)
    time.sleep(600)
"""


def test_what_the_killed_leave_is_removed_and_what_the_living_use_is_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    holders = [
        subprocess.Popen([*command, name], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for name in ("killed", "living")
    ]
    try:
        for holder in holders:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "holds\n"
        holders[0].send_signal(signal.SIGKILL)
        holders[0].wait()
        assert (tmp_path / "killed" / "file").exists()
        with pytest.raises(RuntimeError), scratch_folder(tmp_path, "next"):
            assert not (tmp_path / "killed").exists()
            raise RuntimeError  # deleted whatever happens
        assert {path.name for path in tmp_path.iterdir()} == {"living", "living.lock"}
        assert (tmp_path / "living" / "file").exists()
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


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
        with Notice(0), pytest.raises(KeyboardInterrupt):
            terminate()  # there are no seconds: at once


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
