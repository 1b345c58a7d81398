"""A lock on a stage key while a process computes it; others wait.

Claims save work; correctness does not depend on them. If two holders ever compute the same key
(after one was suspended for a minute, say), the create-only COMMITTED decides between them.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from uuid import uuid4

from dynolab.errors import CorruptData, StoreError
from dynolab.store.filesystem import Files

log = logging.getLogger(__name__)

RENEW_SECONDS = 5.0
STALE_SECONDS = 60.0
_PIDS = 2**22  # PID_MAX_LIMIT of linux/threads.h


class Claim(AbstractContextManager["Claim"]):
    """One contender for the claim at `path`; a context manager that releases the claim.

    A claim is stale once its content has not changed for STALE_SECONDS of this process's own
    clock (machines' clocks differ), or at once if its holder ran on this machine and is dead.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, path
        self._owner, self._renewals = uuid4().hex, 0
        self._seen: tuple[bytes, float] | None = None
        self._released = threading.Event()
        self._renewer: threading.Thread | None = None

    def try_acquire(self) -> bool:
        """Take the claim if it is free; removes a stale one. On False, try again later."""
        try:
            self._files.create(self._path, self._content())
        except FileExistsError:
            self._remove_if_stale()
            return False
        self._renewer = threading.Thread(target=self._renew, name="claim", daemon=True)
        self._renewer.start()
        return True

    def acquire_or_holder(self, poll_seconds: float = 0.5) -> str:
        """Take the claim and return ""; if another process holds it, return that `holder`.

        Waits for the holder's next renewal, which shows that it is alive, or until its claim is
        stale, and then takes it.
        """
        before = self._read()
        while not self.try_acquire():
            now = self._read()
            if None not in (before, now) and now != before:
                return self.holder()
            before = before or now
            time.sleep(poll_seconds)
        return ""

    def holder(self) -> str:
        """The holder as "process PID on HOST"; empty if there is none."""
        content = _parsed(self._read())
        return f"process {content.get('pid')} on {content.get('host')}" if content else ""

    def release(self) -> None:
        """Release the claim. If the store is unreachable, the claim stays until it is stale."""
        self._released.set()
        if self._renewer is None:
            return
        self._renewer.join()
        self._renewer = None
        try:
            if self._is_ours():
                self._files.remove(self._path)
        except StoreError as error:
            log.warning("the claim could not be released: %s", error)

    def __exit__(self, *_: object) -> None:
        self.release()

    def _content(self) -> bytes:
        content = {"owner": self._owner, "renewals": self._renewals, **this_process()}
        return json.dumps(content).encode()

    def _renew(self) -> None:
        while not self._released.wait(RENEW_SECONDS):
            try:
                if not self._is_ours():
                    log.warning("another run took over the claim %s", self._path)
                    return
                self._renewals += 1
                self._files.replace(self._path, self._content())
            except StoreError as error:
                log.warning("the claim could not be renewed: %s", error)

    def _remove_if_stale(self) -> None:
        content, now = self._read(), time.monotonic()
        if content is None:
            return
        if self._seen is None or self._seen[0] != content:
            self._seen = (content, now)
        if now - self._seen[1] >= STALE_SECONDS or is_dead(_parsed(content)):
            log.warning("%s is no longer running: its claim is removed", self.holder() or "a run")
            self._files.remove(self._path)

    def _is_ours(self) -> bool:
        return _parsed(self._read()).get("owner") == self._owner

    def _read(self) -> bytes | None:
        try:
            return self._files.read(self._path)
        except FileNotFoundError:
            return None
        except CorruptData:  # too large to be a claim; it will turn stale
            return b""


def _parsed(content: bytes | None) -> dict[str, object]:
    try:
        content = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


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
