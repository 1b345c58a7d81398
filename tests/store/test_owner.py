"""A process is called dead only where this machine can know it, and then at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dynolab.store import claim as owner_module
from dynolab.store.claim import is_dead, this_process

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="process identity is read from /proc"
)

OWN_NAME = Path("/proc/self/comm")


def stat_of(pid: int) -> list[str]:
    """The fields of proc(5) stat from the third, the state, onwards."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


def test_a_process_is_named_by_host_boot_and_pid_space_pid_and_start() -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    space = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    assert this_process() == {
        "host": socket.gethostname(),
        "machine": f"{boot} {space}",
        "pid": os.getpid(),
        "started": stat_of(os.getpid())[19],  # the 22nd field, starttime
    }


def test_a_process_that_runs_is_not_dead() -> None:
    assert not is_dead(this_process())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started = owner_module._start_time(child.pid)
        assert not is_dead(this_process() | {"pid": child.pid, "started": started})
        child.kill()


def test_a_process_name_may_hold_anything() -> None:
    """The second field of stat is the name in parentheses, whatever it is."""
    expected, name = this_process(), OWN_NAME.read_text()
    try:
        OWN_NAME.write_text("a) Z 1 (b")
        assert this_process() == expected
    finally:
        OWN_NAME.write_text(name.strip())


def test_a_process_that_ended_is_dead_before_and_after_it_is_waited_for() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    owner = this_process() | {"pid": child.pid, "started": owner_module._start_time(child.pid)}
    assert owner["started"] is not None
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # now a zombie
    assert stat_of(child.pid)[0] == "Z"
    assert is_dead(owner)
    child.wait()
    assert is_dead(owner)
    assert is_dead(this_process() | {"started": "1"}), "another process of the same number"


def test_a_process_of_another_user_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(pid: int, signal: int) -> None:
        raise PermissionError("another's")

    monkeypatch.setattr(os, "kill", forbidden)
    assert not is_dead(this_process() | {"started": "1"})


def test_of_another_machine_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = this_process() | {"started": "1"}
    assert not is_dead(gone | {"machine": "another"})
    assert not is_dead({name: gone[name] for name in ("pid", "started")})
    monkeypatch.setattr(owner_module, "_machine", lambda: None)
    assert not is_dead(gone | {"machine": None})


@pytest.mark.parametrize("pid", [None, "1", 1.0, 0, -1, 2**22])
def test_what_is_no_process_number_is_not_asked_for(
    pid: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To signal 0 or a negative number is to signal a group."""
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("was asked for"))
    assert not is_dead(this_process() | {"pid": pid, "started": "1"})


def test_a_machine_without_proc_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    owner = this_process()
    assert (owner["machine"], owner["started"]) == (None, None)
    assert not is_dead(owner)
