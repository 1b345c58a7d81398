"""A run as a folder of the home's `outbox`, where it waits until it is sent to MLflow.

`run.json` holds all but its metrics, `*.jsonl` hold lines of metrics in the format of a training's
metrics.jsonl, `artifacts/` holds files. A folder is deleted when its run has ended and everything
was sent.

A process holds a lock on its folders, which the kernel releases however the process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

from dynolab.aside import write_aside, write_text_aside
from tasks.runtime.track.tail import Tail

if TYPE_CHECKING:
    from pydantic import BaseModel

log = logging.getLogger(__name__)

OUTBOX_TAG = "dynolab.outbox"  # of an MLflow run: the folder that it was created from
STAGE_KEY_TAG = "stage_key"
STUDY_RUN_TAG = "dynolab.run"  # of a study or a trial: whose attempts are one MLflow run
PARENT_TAG = "mlflow.parentRunId"

Status = Literal["FINISHED", "FAILED", "KILLED", "SCHEDULED"]
"""SCHEDULED: it waits to be resumed."""

SHOWN_PARAMS = 40  # of a run
PARAM_LENGTH = 6000  # characters: MLflow's limit for a value
TAG_LENGTH = 8000
ERROR_LENGTH = 1000


@dataclass(frozen=True)
class Run:
    """Identity of a run on the server."""

    run_id: str
    experiment_id: str
    artifact_uri: str


@dataclass
class Record:
    """What `run.json` holds."""

    experiment: str
    name: str
    began: int
    """Milliseconds since 1970, like all times here."""

    tags: dict[str, str]
    params: dict[str, str]
    resume_by: str | None = None
    """Name of the tag that tells the run to go on with."""

    parent: str | None = None
    """Name of the parent's folder."""

    trainings: list[str] | None = None
    """Ids of the runs that the charts of the run's description show; empty: those under it."""

    arms: list[str] = field(default_factory=list)
    arms_metrics: list[str] = field(default_factory=list)
    """Ids of the runs in the description's table of arms, and its columns."""

    page: tuple[str, str] | None = None
    """Run and artifact that the description leads to."""

    error: str = ""
    """Why the run failed, for its description."""

    models: list[dict[str, Any]] = field(default_factory=list)
    """Model versions to register: name, source, run_id, tags."""

    run: Run | None = None
    reopened: bool = False
    """Whether an earlier process created the run, which may hold some of the steps."""

    status: Status | None = None
    ended: int | None = None

    @classmethod
    def read(cls, folder: Path) -> Record:
        """Read a folder's record; **Raises** `ValueError` or `TypeError` if it is not one."""
        content = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        content.pop("resume_key", None)  # of an earlier version
        run = content["run"]
        return cls(**content | {"run": run and Run(**run)})


class SendingThread(Protocol):
    """What a run asks of what sends it."""

    uri: str
    connected: threading.Event

    def wake(self) -> None:
        """Send soon rather than at the next round."""


class RunTracker:
    """One run. Calls only write files and never fail: errors are logged.

    `live`: this process may still log; otherwise a dead process left the folder.
    """

    def __init__(
        self, tracking: SendingThread, folder: Path, record: Record, lock: IO[str], *, live: bool
    ) -> None:
        self.folder, self.record, self.live = folder, record, live
        # The record's version, which each change raises, and the one that the server has.
        self.version, self.sent_version, self.created = 1, 0, threading.Event()
        self.writing = threading.Lock()  # held while the record or an artifact changes
        self._tails: dict[Path, Tail] = {}
        self._tracking, self._held_lock = tracking, lock

    @property
    def run(self) -> Run | None:
        """The run on the server; None until the server has created it."""
        return self.record.run

    @property
    def run_id(self) -> str | None:
        """MLflow's id; None until the server has created the run."""
        return self.run.run_id if self.run else None

    @property
    def server(self) -> str:
        """Address of MLflow's server."""
        return self._tracking.uri

    @property
    def is_sent(self) -> bool:
        """Whether the server has everything so far."""
        try:
            unsent_lines = any(tail.has_more for tail in self.tails())
            return not (self.version > self.sent_version or unsent_lines or any(self.artifacts()))
        except FileNotFoundError:  # it has just been sent and deleted
            return True

    def tails(self) -> list[Tail]:
        """The files of metrics, each with what of it was sent."""
        files = sorted(self.folder.glob("[!.]*.jsonl"))  # those with a dot are being written
        return [self._tails.setdefault(file, Tail(file)) for file in files]

    def artifacts(self) -> Iterator[Path]:
        """The files to upload, whose place below `artifacts/` is that in the run."""
        return (path for path in (self.folder / "artifacts").rglob("*") if path.is_file())

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log `values` at `step`; NaN and infinities are allowed."""
        metrics = {key: float(value) for key, value in values.items()}
        # As a line of a training's file, whose number of examples the sender does not read.
        line = {"step": step, "examples": 0, "time": time.time(), "metrics": metrics}
        with self._logging("metrics"), (self.folder / "logged.jsonl").open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def set_tags(self, values: Mapping[str, str]) -> None:
        """Set tags."""
        with self._changing("tags"):
            self.record.tags |= clipped(values, TAG_LENGTH)

    def describe(
        self,
        trainings: Sequence[str] | None,
        page: tuple[str, str] | None = None,
        arms: Sequence[str] = (),
        arms_metrics: Sequence[str] = (),
    ) -> None:
        """Lead from the run's description to its trainings' charts, to a table of arms and a page.

        **Arguments:** `trainings`: ids of their runs; empty: those under this run; None: no charts.
        `arms`, `arms_metrics`: ids of the runs in the table, and its columns; empty: none. `page`:
        id of the run, of the same experiment, that made it, and the artifact.
        """
        with self._changing("a description"):
            self.record.trainings = None if trainings is None else list(trainings)
            self.record.page = page
            self.record.arms, self.record.arms_metrics = list(arms), list(arms_metrics)

    def register_model(
        self, name: str, source: str, tags: Mapping[str, str], run_id: str | None
    ) -> None:
        """Register the model at `source` as a version of `name`, once for each source.

        `run_id`: MLflow's id of the run that made it; default: this run.
        """
        name = re.sub(r"[^\w .-]", "-", name)  # slashes and colons separate parts of a model's URI
        tags = clipped(tags, TAG_LENGTH)
        with self._changing("a model"):
            self.record.models.append(
                {"name": name, "source": source, "run_id": run_id, "tags": tags}
            )

    def log_artifact(self, file: Path, folder: str) -> None:
        """Upload a small file (figure, report, log, manifest; never a checkpoint) to `folder`.

        The file is copied, so it may be changed or deleted after the call.
        """
        copy = self.folder / "artifacts" / folder.strip("/") / file.name
        with self._logging(f"the artifact {file}"), self.writing:
            write_aside(copy, partial(shutil.copyfile, file), self.folder)

    def wait_created(self, timeout: float) -> bool:
        """Wait until `run_id` is known; returns False if it is not after `timeout` seconds.

        The time to import MLflow's client does not count.
        """
        self._tracking.connected.wait()
        return self.created.wait(timeout)

    def finish(self, status: Status, error: BaseException | None = None) -> None:
        """End the run; later calls may be lost. A second call does nothing.

        **Arguments:** `error`: what a failed run's description says.
        """
        if self.record.status is None:
            with self._changing("the status"):
                self.record.ended, self.record.status = now_ms(), status
                if status == "FAILED" and error is not None:
                    self.record.error = str(error)[:ERROR_LENGTH] or type(error).__name__

    def save(self) -> None:
        """Write `run.json`; the caller holds `writing`."""
        # Written within the folder, which is not made: one that was sent and deleted, or set aside,
        # must not come back.
        content = json.dumps(asdict(self.record))
        write_text_aside(self.folder / "run.json", content, self.folder)

    def release(self) -> None:
        """Let other processes send the folder."""
        self._held_lock.close()

    @contextlib.contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        with self._logging(what), self.writing:
            yield
            self.version += 1
            self.save()
        self._tracking.wake()

    @contextlib.contextmanager
    def _logging(self, what: str) -> Iterator[None]:
        """Log a failure: a full or broken disk must not end the training that is being tracked."""
        try:
            yield
        except OSError as error:
            log.warning("tracking could not log %s of %s: %s", what, self.record.name, error)


def left_by_the_dead(outbox: Path) -> Iterator[tuple[Path, IO[str]]]:
    """The folders of dead processes, oldest first, each with its lock, which is now held."""
    for record in sorted(outbox.glob("[0-9]*/run.json")):
        folder = record.parent
        # Passes over a folder that another process holds, or has sent and deleted meanwhile.
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            lock = (folder / "lock").open("a")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                record.stat()  # its former owner may have sent and deleted it meanwhile
            except BaseException:
                lock.close()
                raise
            yield folder, lock


def left_behind(outbox: Path) -> bool:
    """Whether a dead process has left a run that was not sent completely."""
    for _, lock in left_by_the_dead(outbox):  # the first is enough
        lock.close()
        return True
    return False


def set_aside(folder: Path) -> None:
    """Rename a folder so that nobody sends it and a person can inspect it."""
    folder.rename(folder.with_name(f"rejected-{folder.name}"))


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def shown_params(settings: BaseModel) -> dict[str, str]:
    """What MLflow lists of a run's settings: at most `SHOWN_PARAMS`, by dotted name.

    Those other than their defaults, and all of an objective that a study file sets.
    """
    not_default = dict(flat(settings.model_dump(mode="json", exclude_defaults=True)))
    set_by_user = dict(flat(settings.model_dump(mode="json", exclude_unset=True)))
    shown = {name: text for name, text in set_by_user.items() if "objective." in name} | not_default
    # An empty sub-model is "{}": it says nothing.
    return dict(islice((pair for pair in shown.items() if pair[1] != "{}"), SHOWN_PARAMS))


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested values as text by dotted name; lists are JSON."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        elif isinstance(value, list | tuple | Mapping):
            yield name, json.dumps(value, default=str)
        else:
            yield name, str(value)


def clipped(values: Mapping[str, Any], length: int) -> dict[str, str]:
    """Values as text of at most `length` characters; an ellipsis marks truncated ones."""
    texts = {key: str(value) for key, value in values.items()}
    return {
        key: text if len(text) <= length else text[: length - 1] + "…"
        for key, text in texts.items()
    }
