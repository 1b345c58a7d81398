"""Child processes: started, found by their environment, ended; ports, and the ends of logs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tasks.runtime.system.child import GRACE

Process = subprocess.Popen[bytes]
LOOPBACK = "127.0.0.1"
_PROJECT_ROOT = Path(__file__).resolve().parents[3]
_LAST_LINES = 30
_TAIL_BYTES = 64 * 1024


# A child's death signal fires when the thread that forked it ends, not the process. This thread
# lives as long as the process, unlike a stage's.
_forker = ThreadPoolExecutor(1, "dynolab-forker")


def start_child(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    pass_fds: Iterable[int] = (),
) -> Process:
    """Start `python -m module arguments ...` in its own session, tied to this process.

    The kernel sends it SIGKILL when this process ends. `environment` is its whole environment (plus
    the project in PYTHONPATH); stdout and stderr go to a new file `log`.
    """
    python_path = [str(_PROJECT_ROOT), environment.get("PYTHONPATH", "")]
    command = [
        sys.executable,
        "-m",
        "tasks.runtime.system.child",
        str(os.getpid()),
        module,
        *arguments,
    ]
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)  # a process that still writes to the old file keeps it

    def start() -> Process:
        with log.open("wb") as output:
            return subprocess.Popen(
                command,
                env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, python_path))},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=tuple(pass_fds),
            )

    return _forker.submit(start).result()


def stop_group(process: Process, grace_seconds: float = 10.0) -> None:
    """End a child of `start_child` and its process group: ask, wait, SIGKILL; then reap it.

    A second interruption during the wait goes straight to SIGKILL.
    """
    try:
        if process.poll() is None:
            _signal_group(process.pid, ending_signal())
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_seconds)
    finally:
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()


def ending_signal() -> signal.Signals:
    """What asks a child of `start_child` to end: SIGTERM, or SIGINT where it is shielded."""
    return signal.SIGINT if os.environ.get(GRACE) else signal.SIGTERM


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def kill_marked(marker: str) -> None:
    """SIGKILL every process whose environment holds `marker` (NAME=value), until none is left.

    torchrun starts each rank in a session of its own, and a rank may do so with helpers. They are
    in other process groups, but inherit the variable.

    **Raises** `TimeoutError` if one is still alive after 10 s.
    """
    deadline = time.monotonic() + 10
    while pids := marked_processes(marker):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} survive SIGKILL")
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def marked_processes(marker: str) -> list[int]:
    """Living processes whose initial environment holds `marker` (NAME=value)."""
    name, _, marked_value = marker.partition("=")
    return [pid for pid, value in variable_of_all(name).items() if value == marked_value]


def variable_of_all(name: str) -> dict[int, str]:
    """Living processes whose initial environment has the variable; process id → value."""
    start = f"{name}=".encode()
    values = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile, or another user's
            for entry in (folder / "environ").read_bytes().split(b"\0"):
                if entry.startswith(start):
                    values[int(folder.name)] = entry[len(start) :].decode("utf-8", "replace")
    return values


def listening_socket(port: int = 0, host: str = LOOPBACK) -> socket.socket:
    """A listening socket on `port` (0: any free one), for a server process to inherit.

    It reserves the port: no other program can take it while the server loads, and a client's first
    request waits instead of being refused.

    **Raises** `OSError` (EADDRINUSE) if the port is taken.
    """
    return socket.create_server((host, port), backlog=128)


def free_port() -> int:
    """A port that is free now, for programs that cannot inherit a socket."""
    with listening_socket() as listener:
        return int(listener.getsockname()[1])


def port_in_use(port: int) -> bool:
    """Whether a program listens on the port."""
    try:
        listening_socket(port).close()
    except OSError:
        return True
    return False


def last_lines(log: Path, count: int = _LAST_LINES) -> list[str]:
    """The last `count` non-blank lines of a log; empty if the file does not exist."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]
