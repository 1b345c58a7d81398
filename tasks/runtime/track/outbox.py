"""Journal of tracking operations on disk: one JSON-lines file for each MLflow run.

MLflow's client keeps unsent operations in memory: they would be lost with the process, and an
outage would block training while the client retries.

One process writes a run's file, and one process at a time sends it: an exclusive `flock` is held
from the file's creation to its removal. The kernel releases it when the process dies, so that a
later process can adopt the file. Next to `<id>.jsonl` are `<id>.state` (how much has been sent, and
to which run) and `<id>.files/` (copies of artifacts until they are sent).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import threading
import time
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

OUTBOX_TAG = "dynolab.outbox"  # of an MLflow run: the outbox that it was created from
STAGE_KEY_TAG = "stage_key"

Operation = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """Identity of a run on the server."""

    run_id: str
    experiment_id: str
    artifact_uri: str


@dataclass(frozen=True)
class Sent:
    """How much of an outbox has been sent (bytes of the file), and to which run."""

    offset: int = 0
    run: Run | None = None
    may_hold_steps: bool = False  # the run was reopened: check which steps it already has


class Outbox:
    """One run's journal, locked by this process. One thread may append while another reads."""

    def __init__(self, path: Path, stream: FileIO, *, live: bool) -> None:
        self.path, self.live = path, live  # live: this process may still append
        self.created = threading.Event()
        self._stream, self._lock = stream, threading.Lock()
        self.sent = _read_state(path)
        self.pending = _count_lines(path, self.sent.offset)
        self._artifacts = 0
        # Lines that the disk had no room for, in order; they are written before any later one.
        self._unwritten: deque[bytes] = deque()
        if self.sent.run:
            self.created.set()

    @classmethod
    def create(cls, folder: Path, first: Operation) -> Outbox:
        """Create a journal; other processes never see it without its first operation."""
        folder.mkdir(parents=True, exist_ok=True)
        # Names sort by age: a resumed run must be sent after its predecessor's journal.
        path = folder / f"{time.time_ns():020d}-{uuid.uuid4().hex[:12]}.jsonl"
        hidden = path.with_suffix(".new")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
        stream = os.fdopen(os.open(hidden, flags, 0o600), "ab", buffering=0)
        fcntl.flock(stream, fcntl.LOCK_EX)
        _write(stream, _line(first))
        os.fsync(stream.fileno())
        hidden.rename(path)
        _sync_folder(folder)
        return cls(path, stream, live=True)

    @classmethod
    def adopt(cls, path: Path) -> Outbox | None:
        """Open a dead process's journal; None if another process holds or removed it."""
        try:
            stream = os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND), "ab", buffering=0)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            return None
        if not path.exists():  # the former holder sent and removed it before releasing the lock
            stream.close()
            return None
        return cls(path, stream, live=False)

    @property
    def id(self) -> str:
        """The outbox's name, which the run on the server has as a tag."""
        return self.path.stem

    @property
    def last_written_ms(self) -> int:
        """Time of the last append, in milliseconds since 1970."""
        return self.path.stat().st_mtime_ns // 1_000_000

    def append(self, operation: Operation, *, sync: bool = False) -> None:
        """Append one operation; with `sync`, also flush it from the kernel to disk.

        Data in the kernel survives the death of this process, so training need not wait for the
        disk; the sender syncs before it sends.

        **Raises** `OSError` if the disk is full: the operation waits in memory until it has room.
        """
        with self._lock:
            if self._stream.closed:
                log.debug("%s is closed; dropping %s", self.path, operation["op"])
                return
            self._unwritten.append(_line(operation))
            self.pending += 1
            self._write_lines()
            if sync:
                os.fsync(self._stream.fileno())

    def _write_lines(self) -> None:
        while self._unwritten:
            end = os.fstat(self._stream.fileno()).st_size
            try:
                _write(self._stream, self._unwritten[0])
            except OSError:
                self._stream.truncate(end)  # part of a line would spoil the next one
                raise
            self._unwritten.popleft()

    def keep_artifact(self, file: Path) -> str:
        """Copy `file` to the journal's `.files/`; returns the copy's name for `artifact`."""
        with self._lock:
            self._artifacts += 1
            name = f"{self._artifacts:05d}/{file.name}"
        copy = self.artifact(name)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        return name

    def artifact(self, name: str) -> Path:
        """Path of the copy that `keep_artifact` made."""
        return self.path.with_suffix(".files") / name

    def unsent(self, limit: int) -> list[tuple[Operation, int]]:
        """At most `limit` unsent operations, each with the file offset of its end.

        Skips an incomplete last line, which a killed writer may leave. Lines that the disk had no
        room for are tried again.
        """
        with self._lock, suppress(OSError):
            self._write_lines()
        os.fsync(self._stream.fileno())
        operations: list[tuple[Operation, int]] = []
        with self.path.open("rb") as stream:
            offset = self.sent.offset
            stream.seek(offset)
            for line in stream:
                if not line.endswith(b"\n") or len(operations) == limit:
                    break
                offset += len(line)
                operations.append((_parse(line), offset))
        return operations

    def mark(self, sent: Sent, operations: int = 0) -> None:
        """Record on disk that `operations` more have been sent, up to `sent`."""
        state = self.path.with_suffix(".state")
        hidden = state.with_suffix(".state-new")
        with hidden.open("w") as stream:
            json.dump(asdict(sent), stream)
            stream.flush()
            os.fsync(stream.fileno())
        hidden.replace(state)
        with self._lock:
            self.sent = sent
            self.pending -= operations
        if sent.run:
            self.created.set()

    def set_aside(self) -> None:
        """Rename the journal to `.rejected`: senders skip it, a person can inspect it."""
        self.path.rename(self.path.with_suffix(".rejected"))
        self.close()

    def remove(self) -> None:
        """Delete the journal and its state and artifact copies, then release the lock."""
        shutil.rmtree(self.path.with_suffix(".files"), ignore_errors=True)
        # The journal first: without its state, it would be sent again after a crash in between.
        self.path.unlink()
        self.path.with_suffix(".state").unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Release the lock; later appends are dropped."""
        with self._lock:
            self._stream.close()


def adopt_left_behind(folder: Path, boxes: dict[str, Outbox]) -> None:
    """Add to `boxes`, by id, the journals in `folder` whose process has died."""
    for path in sorted(folder.glob("*.jsonl")):
        if path.stem not in boxes and (box := Outbox.adopt(path)):
            boxes[path.stem] = box


def left_behind(folder: Path) -> bool:
    """Whether a dead process has left a journal in the folder."""
    for path in folder.glob("*.jsonl"):
        if box := Outbox.adopt(path):
            box.close()
            return True
    return False


def first_operation(path: Path) -> Operation:
    """The first operation of the journal at `path`; {} if the journal is gone."""
    try:
        with path.open("rb") as stream:
            return _parse(stream.readline())
    except FileNotFoundError:
        return {}


def sent_run(path: Path) -> Run | None:
    """The server's run for the journal at `path`; None if none was created yet."""
    return _read_state(path).run


def _read_state(path: Path) -> Sent:
    try:
        state = json.loads(path.with_suffix(".state").read_text())
        run = state["run"] and Run(**state["run"])
        return Sent(int(state["offset"]), run, bool(state["may_hold_steps"]))
    except FileNotFoundError:
        return Sent()
    except (ValueError, KeyError, TypeError) as error:
        log.warning("cannot read the state of %s; sending all of it again: %s", path, error)
        return Sent()


def _count_lines(path: Path, offset: int) -> int:
    with path.open("rb") as stream:
        stream.seek(offset)
        return sum(line.endswith(b"\n") for line in stream)


def _line(operation: Operation) -> bytes:
    return json.dumps(operation).encode() + b"\n"


def _write(stream: FileIO, line: bytes) -> None:
    while line:
        line = line[stream.write(line) :]


def _parse(line: bytes) -> Operation:
    try:
        operation = json.loads(line)
    except ValueError:
        log.warning("skipping an unreadable line of the tracking outbox: %r", line[:80])
        return {}
    return operation if isinstance(operation, dict) else {}


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
