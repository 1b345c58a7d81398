"""Sends runs to MLflow on a background thread.

A training neither waits for the server nor fails because tracking does. The thread sends what has
changed in the runs' folders (see `runs`). While the server is down a folder waits, also for a later
process, which sends all of it: the server ignores what it already has (see `sender`).
"""

from __future__ import annotations

import fcntl
import getpass
import logging
import os
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.runtime.track.runs import (
    PARAM_LENGTH,
    TAG_LENGTH,
    Record,
    RunTracker,
    clipped,
    flat,
    left_by_the_dead,
    now_ms,
    set_aside,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

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
        resume_by: str | None = None,
    ) -> RunTracker:
        """Begin a run; returns at once, whether the server answers or not.

        `settings_yaml`: text of its artifact `settings.yaml`.

        With `resume_by`, the name of one of the tags, reopens the newest run with the same tag that
        is not FINISHED, and skips metric steps that it already has; if there is none, creates one.
        Nested `params` become dotted names.
        """
        # Names sort by age: a resumed run must be sent after its predecessor.
        folder = self.outbox / f"{time.time_ns():020d}-{uuid.uuid4().hex[:12]}"
        record = Record(
            self.experiment,
            name,
            began=now_ms(),
            tags={"mlflow.user": _user()} | clipped(tags, TAG_LENGTH),
            params=clipped(dict(flat(params)), PARAM_LENGTH),
            resume_by=resume_by,
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
        while (unsent := self._unsent()) and time.monotonic() < deadline:
            self.wake()
            time.sleep(AWAITED_PAUSE_SECONDS)
        return unsent

    def close(self, timeout: float) -> int:
        """Call `send_pending`, then stop; returns how many runs remain in the outbox."""
        unsent = self.send_pending(timeout)
        self._stop.set()
        self.wake()
        self._thread.join(timeout=5.0)
        for tracker in list(self._runs.values()):
            tracker.release()
        return unsent

    def wake(self) -> None:
        """Send soon rather than at the next round."""
        self._wake.set()

    def _unsent(self) -> int:
        # All but the runs that go on and whose data have arrived: one that has ended stays in
        # `_runs` until its end has arrived, too.
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
            self.connected.set()  # also after an error: `wait_created` must not wait for ever
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


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"
