"""MLflow tracking that neither fails nor slows the training that it tracks.

Training only appends to a durable outbox, and a background thread sends it. While the server is
down everything waits in the outbox, from which this or a later process sends it.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tasks.runtime.track.client import connect
from tasks.runtime.track.outbox import STAGE_KEY_TAG, Operation, Outbox, Run, adopt_left_behind

log = logging.getLogger(__name__)

Status = Literal["FINISHED", "FAILED", "KILLED"]

PARAM_LENGTH = 6000  # characters: MLflow's limit for a value
TAG_LENGTH = 8000
SEND_SECONDS = 2.0  # between two rounds of sending while the server is usable
AWAITED_PAUSE_SECONDS = 0.1  # between two checks in `send_pending`
LONGEST_PAUSE_SECONDS = 15.0  # between two attempts while the server is down


class Tracking:
    """Sends the outboxes of this process and of dead ones to one server.

    **Arguments:** `uri`: http(s) address of the server. `outbox`: folder of the journals.
    `experiment`: MLflow experiment (project).
    """

    def __init__(self, uri: str, outbox: Path, experiment: str) -> None:
        self.uri, self.outbox, self.experiment = uri.rstrip("/"), outbox, experiment
        self.connected = threading.Event()  # MLflow's client is imported
        self._boxes: dict[str, Outbox] = {}  # not completely sent yet
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
        resume_key: str | None = None,
    ) -> RunTracker:
        """Begin a run; returns at once, whether the server answers or not.

        With `resume_key`, reopens the newest run tagged `stage_key` = `resume_key` that is not
        FINISHED, and skips metric steps that it already has; if there is none, creates one with
        that tag. Nested `params` become dotted names.
        """
        own_tags = {"mlflow.user": _user()} | _clipped(tags, TAG_LENGTH)
        if resume_key:
            own_tags[STAGE_KEY_TAG] = resume_key
        first = {
            "op": "create",
            "experiment": self.experiment,
            "name": name,
            "time": _now_ms(),
            "tags": own_tags,
            "resume_key": resume_key,
            "parent_outbox": parent and parent.outbox_id,
            "parent_run": parent and parent.run_id,
        }
        box: Outbox | None = None
        with _errors_logged("start the run's outbox"):
            box = Outbox.create(self.outbox, first)
            self._boxes[box.id] = box
        tracker = RunTracker(self, box)
        tracker.log_params(params)
        self.wake()
        return tracker

    def send_pending(self, timeout: float) -> int:
        """Send the outboxes of this and of dead processes; returns how many operations remain.

        Waits at most `timeout` seconds, even if the server is not running yet.
        """
        deadline = time.monotonic() + timeout
        self._adopt()
        while time.monotonic() < deadline and any(
            box.pending or not box.live for box in list(self._boxes.values())
        ):
            self.wake()
            time.sleep(AWAITED_PAUSE_SECONDS)
        return sum(box.pending for box in list(self._boxes.values()))

    def close(self, timeout: float) -> int:
        """Call `send_pending`, then stop; returns how many operations remain in the outbox."""
        left = self.send_pending(timeout)
        self._stop.set()
        self.wake()
        self._thread.join(timeout=5.0)
        for box in list(self._boxes.values()):
            box.close()
        return left

    def wake(self) -> None:
        """Send soon rather than at the next round."""
        self._wake.set()

    def _adopt(self) -> None:
        # One thread at a time: a journal that the other thread has just locked must be in `_boxes`
        # before pending operations are counted.
        with self._adopting, _errors_logged("look for outboxes of dead processes"):
            adopt_left_behind(self.outbox, self._boxes)

    def _work(self) -> None:
        self._adopt()  # before the import, which takes seconds
        try:
            client = connect(self.uri)
        finally:
            self.connected.set()
        from tasks.runtime.track.sender import Sender  # imports MLflow

        sender, pause = Sender(client, self.outbox, self._boxes), SEND_SECONDS
        while not self._stop.is_set():
            self._wake.clear()
            self._adopt()
            pause = SEND_SECONDS if sender.send_all() else min(2 * pause, LONGEST_PAUSE_SECONDS)
            self._wake.wait(pause)


class RunTracker:
    """One run. Calls only append to the outbox and never fail: errors are logged."""

    def __init__(self, tracking: Tracking, box: Outbox | None) -> None:
        self._tracking, self._box = tracking, box
        self._finished = False

    @property
    def outbox_id(self) -> str | None:
        """Name of the run's outbox, which the run has as a tag."""
        return self._box.id if self._box else None

    @property
    def run(self) -> Run | None:
        """The run on the server; None until the server has created it."""
        return self._box.sent.run if self._box else None

    @property
    def run_id(self) -> str | None:
        """MLflow's id; None until the server has created the run."""
        return self.run.run_id if self.run else None

    @property
    def server(self) -> str:
        """Address of MLflow's server."""
        return self._tracking.uri

    def log_metrics(
        self, values: Mapping[str, float], step: int, timestamp_ms: int | None = None
    ) -> None:
        """Log `values` at `step`; NaN and infinities are allowed."""
        time_ms = _now_ms() if timestamp_ms is None else timestamp_ms
        numbers = {key: float(value) for key, value in values.items()}
        self._append({"op": "metrics", "step": step, "time": time_ms, "values": numbers})

    def set_tags(self, values: Mapping[str, str]) -> None:
        """Set tags."""
        self._append({"op": "tags", "values": _clipped(values, TAG_LENGTH)})

    def describe(
        self, trainings: Sequence[str] | None, page: tuple[str, str] | None = None
    ) -> None:
        """Lead from the run's description to its trainings' charts, and to a page.

        **Arguments:** `trainings`: ids of their runs; empty: those under this run; None: no charts.
        `page`: id of the run, of the same experiment, that made it, and the artifact.
        """
        self._append({"op": "describe", "trainings": trainings, "page": page})

    def log_params(self, values: Mapping[str, Any]) -> None:
        """Log parameters; a run keeps the first value of each."""
        if values:
            flat = _clipped(dict(_flat(values)), PARAM_LENGTH)
            self._append({"op": "params", "values": flat})

    def log_artifact(self, file: Path, folder: str) -> None:
        """Upload a small file (figure, report, log, manifest; never a checkpoint) to `folder`.

        The file is copied, so it may be changed or deleted after the call.
        """
        if self._box is None:
            return
        with _errors_logged(f"keep the artifact {file}"):
            copy = self._box.keep_artifact(file)
            self._append({"op": "artifact", "file": copy, "name": file.name, "folder": folder})

    def register_model(
        self, name: str, source: str, tags: Mapping[str, str], run_id: str | None
    ) -> None:
        """Register the model at `source` as a version of `name`, once for each source.

        `run_id`: MLflow's id of the run that made it; default: this run.
        """
        model = {"name": _model_name(name), "source": source, "run_id": run_id}
        self._append({"op": "model", **model, "tags": _clipped(tags, TAG_LENGTH)})

    def wait_created(self, timeout: float) -> bool:
        """Wait until `run_id` is known; returns False if it is not after `timeout` seconds.

        The time to import MLflow's client does not count.
        """
        self._tracking.connected.wait()
        return self._box.created.wait(timeout) if self._box else False

    def finish(self, status: Status) -> None:
        """End the run; later log calls are dropped. A second call does nothing."""
        if not self._finished:
            self._append({"op": "finish", "status": status, "time": _now_ms()}, sync=True)
            self._finished = True
            self._tracking.wake()

    def _append(self, operation: Operation, *, sync: bool = False) -> None:
        if self._finished:
            log.warning("the run is finished; %s is not logged", operation["op"])
        elif self._box is not None:
            with _errors_logged(f"log {operation['op']}"):
                self._box.append(operation, sync=sync)


@contextlib.contextmanager
def _errors_logged(action: str) -> Iterator[None]:
    """Log an OSError: a full or broken disk must not end the training that is being tracked."""
    try:
        yield
    except OSError as error:
        log.warning("tracking could not %s: %s", action, error)


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


def _model_name(name: str) -> str:
    """Replace characters, such as slashes and colons, that separate parts of a model's URI."""
    return re.sub(r"[^\w .-]", "-", name)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"
