"""Identifies the process that owns something, and checks whether it is dead."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

_PIDS = 2**22  # PID_MAX_LIMIT of linux/threads.h


def this_process() -> dict[str, object]:
    """Unique identity of this process: host, boot and pid namespace, pid, start time."""
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": pid,
        "started": _start_time(pid),
    }


def is_dead(owner: Mapping[str, object]) -> bool:
    """Whether the process is known to be dead; always false on another machine."""
    pid, machine = owner.get("pid"), _machine()
    if machine is None or owner.get("machine") != machine or not isinstance(pid, int):
        return False
    if not 1 <= pid < _PIDS:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return owner.get("started") != _start_time(pid)


def _machine() -> str | None:
    """Boot id and pid namespace, within which pid and start time identify one process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _start_time(pid: int) -> str | None:
    """Start time in clock ticks since boot, field 22 of proc(5) stat; None for a dead process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
