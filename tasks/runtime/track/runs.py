"""Writes runs to files, which a background thread sends to MLflow.

A training neither waits for the server nor fails because tracking does.

A run is a folder of the home's `outbox`: `run.json` holds all but its metrics, `*.jsonl` hold lines
of metrics in the format of a training's metrics.jsonl, `artifacts/` holds files. A background
thread sends what has changed. While the server is down the folder waits, also for a later process,
which sends all of it: the server ignores what it already has (see `sender`). A folder is deleted
when its run has ended and everything was sent.

A process holds a lock on its folders, which the kernel releases however the process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from pydantic import BaseModel

log = logging.getLogger(__name__)

OUTBOX_TAG = "dynolab.outbox"  # of an MLflow run: the folder that it was created from
STAGE_KEY_TAG = "stage_key"
PARENT_TAG = "mlflow.parentRunId"

Status = Literal["FINISHED", "FAILED", "KILLED"]

SHOWN_PARAMS = 40  # of a run
PARAM_LENGTH = 6000  # characters: MLflow's limit for a value
TAG_LENGTH = 8000
SEND_SECONDS = 2.0  # between two rounds of sending while the server is usable
AWAITED_PAUSE_SECONDS = 0.1  # between two checks in `send_pending`
LONGEST_PAUSE_SECONDS = 15.0  # between two attempts while the server is down

# The client reads these from the environment alone.
_CLIENT_SETTINGS = {
    # Tracking retries by itself. With MLflow's seven retries, a call to a server that
    # refuses connections takes four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",  # also for a large figure on a slow link
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # standard output is for results
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


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
    resume_key: str | None = None
    parent: str | None = None
    """Name of the parent's folder."""

    trainings: list[str] | None = None
    """Ids of the runs that the charts of the run's description show; empty: those under it."""

    page: tuple[str, str] | None = None
    """Run and artifact that the description leads to."""

    models: list[dict[str, Any]] = field(default_factory=list)
    run: Run | None = None
    reopened: bool = False
    """Whether an earlier process created the run, which may hold some of the steps."""

    status: Status | None = None
    ended: int | None = None

    @classmethod
    def read(cls, folder: Path) -> Record:
        """Read a folder's record; **Raises** `ValueError` or `TypeError` if it is not one."""
        content = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return cls(**content | {"run": content["run"] and Run(**content["run"])})


class RunTracker:
    """One run. Calls only write files and never fail: errors are logged.

    `live`: this process may still log; otherwise a dead process left the folder.
    """

    def __init__(
        self, tracking: Tracking, folder: Path, record: Record, lock: IO[str], *, live: bool
    ) -> None:
        self.folder, self.record, self.live = folder, record, live
        self.version, self.sent_version, self.created = 1, 0, threading.Event()
        self.writing = threading.Lock()
        self.offsets: dict[Path, tuple[int, int]] = {}
        """File of metrics → its inode, and how many of its bytes were sent."""
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
            unsent = (self.unsent_from(file) < file.stat().st_size for file in self.metric_files())
            return not (self.version > self.sent_version or any(unsent) or any(self.artifacts()))
        except FileNotFoundError:  # it has just been sent and deleted
            return True

    def metric_files(self) -> list[Path]:
        """The files of metrics."""
        return sorted(self.folder.glob("*.jsonl"))

    def artifacts(self) -> Iterator[Path]:
        """The files to upload, whose place below `artifacts/` is that in the run."""
        return (path for path in (self.folder / "artifacts").rglob("*") if path.is_file())

    def unsent_from(self, file: Path) -> int:
        """Where the unsent lines of a file begin; 0 if another file has taken its place."""
        status, (inode, offset) = file.stat(), self.offsets.get(file, (0, 0))
        return offset if status.st_ino == inode and offset <= status.st_size else 0

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log `values` at `step`; NaN and infinities are allowed."""
        metrics = {key: float(value) for key, value in values.items()}
        line = {"step": step, "examples": 0, "time": time.time(), "metrics": metrics}
        with self._logging("metrics"), (self.folder / "logged.jsonl").open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def set_tags(self, values: Mapping[str, str]) -> None:
        """Set tags."""
        with self._changing("tags"):
            self.record.tags |= _clipped(values, TAG_LENGTH)

    def describe(
        self, trainings: Sequence[str] | None, page: tuple[str, str] | None = None
    ) -> None:
        """Lead from the run's description to its trainings' charts, and to a page.

        **Arguments:** `trainings`: ids of their runs; empty: those under this run; None: no charts.
        `page`: id of the run, of the same experiment, that made it, and the artifact.
        """
        with self._changing("a description"):
            self.record.trainings = None if trainings is None else list(trainings)
            self.record.page = page

    def register_model(
        self, name: str, source: str, tags: Mapping[str, str], run_id: str | None
    ) -> None:
        """Register the model at `source` as a version of `name`, once for each source.

        `run_id`: MLflow's id of the run that made it; default: this run.
        """
        name = re.sub(r"[^\w .-]", "-", name)  # slashes and colons separate parts of a model's URI
        tags = _clipped(tags, TAG_LENGTH)
        with self._changing("a model"):
            self.record.models.append(
                {"name": name, "source": source, "run_id": run_id, "tags": tags}
            )

    def log_artifact(self, file: Path, folder: str) -> None:
        """Upload a small file (figure, report, log, manifest; never a checkpoint) to `folder`.

        The file is copied, so it may be changed or deleted after the call.
        """
        copy = self.folder / "artifacts" / folder.strip("/") / file.name
        aside = self.folder / f"{uuid.uuid4().hex}.part"
        with self._logging(f"the artifact {file}"):
            shutil.copyfile(file, aside)
            with self.writing:
                copy.parent.mkdir(parents=True, exist_ok=True)
                aside.replace(copy)

    def wait_created(self, timeout: float) -> bool:
        """Wait until `run_id` is known; returns False if it is not after `timeout` seconds.

        The time to import MLflow's client does not count.
        """
        self._tracking.connected.wait()
        return self.created.wait(timeout)

    def finish(self, status: Status) -> None:
        """End the run; later calls may be lost. A second call does nothing."""
        if self.record.status is None:
            with self._changing("the status"):
                self.record.ended, self.record.status = now_ms(), status

    def save(self) -> None:
        """Write `run.json`; the caller holds `writing`."""
        aside = self.folder / "run.part"
        aside.write_text(json.dumps(asdict(self.record)), encoding="utf-8")
        aside.replace(self.folder / "run.json")

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


class Tracking:
    """Sends the runs of this process and of dead ones to one server.

    **Arguments:** `uri`: http(s) address of the server. `outbox`: folder of the runs' folders.
    `experiment`: MLflow experiment (project).
    """

    def __init__(self, uri: str, outbox: Path, experiment: str) -> None:
        self.uri, self.outbox, self.experiment = uri.rstrip("/"), outbox, experiment
        self.connected = threading.Event()  # MLflow's client is imported
        self._runs: dict[str, RunTracker] = {}  # not completely sent yet
        self._wake, self._stop = threading.Event(), threading.Event()
        self._adopting = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="mlflow-sender", daemon=True)
        self._thread.start()

    def start_run(
        self,
        name: str,
        *,
        parent: RunTracker | None = None,
        tags: Mapping[str, str],
        params: Mapping[str, Any],
        settings_yaml: str = "",
        resume_key: str | None = None,
    ) -> RunTracker:
        """Begin a run; returns at once, whether the server answers or not.

        `settings_yaml`: text of its artifact `settings.yaml`.

        With `resume_key`, reopens the newest run tagged `stage_key` = `resume_key` that is not
        FINISHED, and skips metric steps that it already has; if there is none, creates one with
        that tag. Nested `params` become dotted names.
        """
        # Names sort by age: a resumed run must be sent after its predecessor.
        folder = self.outbox / f"{time.time_ns():020d}-{uuid.uuid4().hex[:12]}"
        stage = {STAGE_KEY_TAG: resume_key} if resume_key else {}
        record = Record(
            self.experiment,
            name,
            began=now_ms(),
            tags={"mlflow.user": _user()} | _clipped(tags, TAG_LENGTH) | stage,
            params=_clipped(dict(_flat(params)), PARAM_LENGTH),
            resume_key=resume_key,
            parent=parent.folder.name if parent else None,
        )
        folder.mkdir(parents=True, mode=0o700)
        if settings_yaml:
            (folder / "artifacts").mkdir()
            (folder / "artifacts" / "settings.yaml").write_text(settings_yaml)
        lock = (folder / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        tracker = RunTracker(self, folder, record, lock, live=True)
        tracker.save()  # others see a folder only when it has a record
        self._runs[folder.name] = tracker
        self.wake()
        return tracker

    def send_pending(self, timeout: float) -> int:
        """Send the runs of this and of dead processes; returns how many are not sent completely.

        Waits at most `timeout` seconds, even if the server is not running yet.
        """
        deadline = time.monotonic() + timeout
        self._adopt()
        while (left := self._unsent()) and time.monotonic() < deadline:
            self.wake()
            time.sleep(AWAITED_PAUSE_SECONDS)
        return left

    def close(self, timeout: float) -> int:
        """Call `send_pending`, then stop; returns how many runs remain in the outbox."""
        left = self.send_pending(timeout)
        self._stop.set()
        self.wake()
        self._thread.join(timeout=5.0)
        for tracker in list(self._runs.values()):
            tracker.release()
        return left

    def wake(self) -> None:
        """Send soon rather than at the next round."""
        self._wake.set()

    def _unsent(self) -> int:
        return sum(
            not (tracker.live and tracker.record.status is None and tracker.is_sent)
            for tracker in list(self._runs.values())
        )

    def _adopt(self) -> None:
        # One thread at a time: a folder that the other thread has just locked must be in `_runs`
        # before unsent ones are counted.
        with self._adopting:
            for folder, lock in left_by_the_dead(self.outbox):
                try:
                    record = Record.read(folder)
                except (OSError, ValueError, TypeError, KeyError) as error:
                    log.warning("cannot read %s; setting it aside: %s", folder, error)
                    set_aside(folder)
                    lock.close()
                    continue
                self._runs[folder.name] = RunTracker(self, folder, record, lock, live=False)

    def _work(self) -> None:
        self._adopt()
        while not (self._runs or self._stop.is_set()):  # the import takes seconds and 150 MB
            self._wake.wait(SEND_SECONDS)
            self._wake.clear()
            self._adopt()
        if not self._runs:
            return
        try:
            client = connect(self.uri)
        finally:
            self.connected.set()
        from tasks.runtime.track.sender import Sender  # imports MLflow

        sender, pause = Sender(client, self.outbox, self._runs), SEND_SECONDS
        while not self._stop.is_set():
            self._wake.clear()
            self._adopt()
            pause = SEND_SECONDS if sender.send_all() else min(2 * pause, LONGEST_PAUSE_SECONDS)
            self._wake.wait(pause)


def connect(uri: str) -> MlflowClient:
    """Create MLflow's client of the server at `uri`, which never blocks on one that is down.

    Importing MLflow takes 2.0 to 2.8 s and 150 MB (mlflow 3.17, two cores), so only this imports
    it: a command whose stages are all cached has nothing to send and saves that. No request is
    made yet.

    At every request the client reads the login from MLFLOW_TRACKING_USERNAME and
    MLFLOW_TRACKING_PASSWORD, or from MLFLOW_TRACKING_TOKEN.
    """
    os.environ.update(_CLIENT_SETTINGS)  # before the import, which starts MLflow's telemetry
    from mlflow import MlflowClient

    return MlflowClient(uri, registry_uri=uri)


def left_by_the_dead(outbox: Path) -> Iterator[tuple[Path, IO[str]]]:
    """The folders of dead processes, oldest first, each with its lock, which is now held."""
    for record in sorted(outbox.glob("[0-9]*/run.json")):
        folder = record.parent
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
    for _, lock in left_by_the_dead(outbox):
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
    own = dict(_flat(settings.model_dump(mode="json", exclude_defaults=True)))
    given = dict(_flat(settings.model_dump(mode="json", exclude_unset=True)))
    shown = {name: text for name, text in given.items() if "objective." in name} | own
    return dict(islice((pair for pair in shown.items() if pair[1] != "{}"), SHOWN_PARAMS))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list | tuple | Mapping):
            yield name, json.dumps(value, default=str)
        else:
            yield name, str(value)


def _clipped(values: Mapping[str, Any], length: int) -> dict[str, str]:
    """Values as text of at most `length` characters; an ellipsis marks truncated ones."""
    texts = {key: str(value) for key, value in values.items()}
    return {
        key: text if len(text) <= length else text[: length - 1] + "…"
        for key, text in texts.items()
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"
