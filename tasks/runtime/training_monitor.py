"""What runs beside a training: it sends metrics and alarms, asks a sweep, commits resume states.

Its metrics reach MLflow through the file that the training appends to: `follow` links it into the
run's folder in the outbox, whose lines `track/sender.py` sends.
"""

from __future__ import annotations

import contextvars
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dynolab.aside import write_aside
from dynolab.errors import Pruned
from dynolab.results.study import MetricsLine
from dynolab.training.alarm import GAP, RANG, RISE
from dynolab.training.job import STOP
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.progress import StepReporter, emit_event, outcome_of
from tasks.runtime.track.tail import Tail
from tasks.runtime.work import Work

if TYPE_CHECKING:
    from tasks.runtime.track.runs import RunTracker

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
EVENT = "dynolab.squeeze.alarm"
TAG = "squeeze.alarm"

_WANDB_TIMEOUTS = {f"WANDB_{wait}_TIMEOUT": "30" for wait in ("LOGIN", "INIT", "FINISH")}
"""Seconds, unless the environment has others: W&B's own are 90, or have no end."""


class TrainingMonitor:
    """Threads that watch one training run: for its metrics, its reports and its resume states.

    The first reads the ranks' metrics file and feeds tracking, progress and the alarm. The second
    reads it for the clients of DYNOLAB_REPORT_TO, which may wait for their servers. The third
    commits resume states that appear in `states`, which are complete by then, and deletes the
    local copies. If several wait, only the newest is committed; after a training that ended well,
    none, since its result follows. A slow or silent store holds up neither training nor its
    metrics.

    Create it on the stage's thread, whose Prefect context and watcher it keeps.

    **Arguments:** `begin`: the step that the training goes on from.
    """

    def __init__(self, work: Work[Any], states: Path, total_steps: int, *, begin: int = 0) -> None:
        self._work, self._states = work, states
        self._context = contextvars.copy_context()
        if begin:
            work.progress.note(work.name, f"goes on from step {begin}")
        # `StepReporter` shows no line before it.
        self._progress = work.progress.stage(work.name, total_steps, begin)
        metrics = work.output / "metrics.jsonl"
        self._watched = Watched(work.name, states / STOP)
        # One for each thread: a tail remembers how far it was read.
        tail, reports_tail = Tail(metrics), Tail(metrics)
        listeners = (StepReporter(self._progress), self._alarm, self._watched)

        def poll() -> None:
            # At each poll: the rank program may have put another file in this one's place.
            follow(metrics, work.tracker)
            _pass_on(tail, listeners)

        self._reports = [
            Report(
                client,
                project=work.tracker.record.experiment,
                name=work.tracker.record.name,
                config=work.config.model_dump(mode="json"),
            )
            for client in Settings.from_environment().report_to
        ]
        self._metrics_thread = _PollingThread(f"follow-{work.name}", poll)
        self._reports_thread = _PollingThread(
            f"report-{work.name}", lambda: _pass_on(reports_tail, self._reports)
        )
        self._states_thread = _PollingThread(f"keep-{work.name}", self._keep_newest)

    def __enter__(self) -> TrainingMonitor:
        self._states.mkdir(parents=True, exist_ok=True)
        for thread in (self._metrics_thread, self._reports_thread, self._states_thread):
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Metrics first, and however the training ended: its last lines are shown and sent.
        self._metrics_thread.end(poll_again=True)
        outcome = "done" if error is None else outcome_of(error)
        self._progress.close(outcome)
        self._states_thread.end(poll_again=kind is not None)  # a failed one is resumed from them
        # After Ctrl-C nobody waits for other servers.
        self._reports_thread.end(poll_again=outcome != "cancelled")
        if outcome != "cancelled":
            for report in self._reports:
                report.finish(failed=outcome == "failed")
        if kind is None:
            self._check_threads()

    def check(self) -> None:
        """Raise a thread's exception, if there is one, and `Pruned` if training should end."""
        self._check_threads()
        self._watched.check()

    def _check_threads(self) -> None:
        # Not the reports' thread: no client's error ends a training.
        for thread in (self._metrics_thread, self._states_thread):
            if thread.error is not None:
                raise thread.error

    def _keep_newest(self) -> None:
        states = sorted(path for path in self._states.iterdir() if path.name.startswith("step-"))
        for state in states[-1:]:  # the newest: their names have their steps with zeros before
            self._work.commit_resume(int(state.name.removeprefix("step-")), state)
        for state in states:
            shutil.rmtree(state)

    def _alarm(self, line: MetricsLine) -> None:
        """Tell MLflow (a tag) and Prefect (an event) of an alarm."""
        if RANG not in line.metrics:
            return
        name, gap, rise = self._work.name, line.metrics[GAP], line.metrics[RISE]
        message = f"step {line.step}: the gap y* - chosen grew by {rise:.2f} nats to {gap:.2f}"
        log.warning("%s: squeezing alarm at %s", name, message)
        self._work.tracker.set_tags({TAG: message})
        payload = {"stage": name, "step": line.step, "gap": gap, "rise": rise, "unit": "nats"}
        self._context.run(emit_event, EVENT, self._work.address, name, payload)


class _PollingThread(threading.Thread):
    """Calls `poll` every POLL_SECONDS; `error` is the exception that ended it, if one did."""

    def __init__(self, name: str, poll: Callable[[], object]) -> None:
        super().__init__(name=name)
        self._poll, self._poll_again, self._ended = poll, False, threading.Event()
        self.error: BaseException | None = None

    def end(self, *, poll_again: bool) -> None:
        """Stop; wait for the current call and, with `poll_again`, for a last one."""
        self._poll_again = poll_again
        self._ended.set()
        self.join()

    def run(self) -> None:
        """What the thread does."""
        try:
            while not self._ended.wait(POLL_SECONDS):
                self._poll()
            if self._poll_again:
                self._poll()
        except BaseException as error:  # raised again in the training's thread
            self.error = error


def _pass_on(tail: Tail, listeners: Sequence[Callable[[MetricsLine], None]]) -> None:
    """Give each listener the lines that were added since the last call."""
    for lines in tail.batches(1):
        for line in lines:
            for listener in listeners:
                listener(line)


def follow(file: Path, run: RunTracker) -> None:
    """Have the lines of a growing file of metrics sent; call again when it may be another file.

    A link in the run's folder keeps the lines when `file` is deleted; it is a copy where the
    two are on different file systems. Errors are logged.
    """
    link = run.folder / "followed.jsonl"
    try:
        # A hard link is the same file. Another one: a resumed rank program replaced the first.
        if not file.exists() or (link.exists() and link.samefile(file)):
            return
        try:
            write_aside(link, partial(os.link, file), run.folder)
        except OSError:
            shutil.copyfile(file, link)
    except OSError as error:  # a full or broken disk must not end the training
        log.warning("tracking could not follow %s: %s", file, error)


Watcher = Callable[[str, MetricsLine], None]
"""Called with a stage's name and each of its metric lines; raises `Pruned` to end the training."""

_watcher: contextvars.ContextVar[Watcher | None] = contextvars.ContextVar("watcher", default=None)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Let `watcher` watch the stages that run in the block."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


class Watched:
    """Passes one training's metric lines to the flow's watcher; create it on the flow's thread.

    The watcher runs on the thread that reads the lines; `check` raises its `Pruned` in the
    training's thread. `stop`: a file that is made then; a training loop ends when it sees it.
    """

    def __init__(self, stage: str, stop: Path) -> None:
        self._stage, self._watcher, self._stop = stage, _watcher.get(), stop
        self._pruned: Pruned | None = None

    def __call__(self, line: MetricsLine) -> None:
        """Pass one line to the watcher."""
        if self._watcher is None or self._pruned is not None:
            return
        try:
            self._watcher(self._stage, line)
        except Pruned as pruned:
            self._pruned = pruned
            self._stop.touch()

    def check(self) -> None:
        """Raise `Pruned` if the watcher has ended the training."""
        if self._pruned is not None:
            raise self._pruned


class Report:
    """A training's run at W&B or trackio, by its own client; the first metrics import it.

    Each attempt at a training is a run there with all of its steps: the metrics of a resumed
    training begin with those before the interruption. An error of the client ends no training: it
    is logged, and the client gets nothing more.

    **Arguments:** `run`: what the client's `init` takes: `project`, `name`, `config`.
    """

    def __init__(self, client: str, **run: Any) -> None:
        self._client, self._init_options = client, run
        self._run: Any = None
        self._failed = False

    def __call__(self, line: MetricsLine) -> None:
        """Send one line."""
        if not self._failed:
            self._try(self._send, line)

    def finish(self, *, failed: bool) -> None:
        """End the run when its metrics are sent; trackio keeps no status of runs."""
        if self._run is not None:
            status = {"exit_code": int(failed)} if self._client == "wandb" else {}
            self._try(self._run.finish, **status)

    def _send(self, line: MetricsLine) -> None:
        if self._run is None:
            os.environ.update(_WANDB_TIMEOUTS | os.environ)  # the user's own win
            self._run = import_module(self._client).init(**self._init_options)
        self._run.log(line.metrics, step=line.step)

    def _try(self, call: Any, *values: Any, **more: Any) -> None:
        try:
            call(*values, **more)
        except Exception as error:
            self._failed = True
            log.warning("%s gets no more metrics of this training: %s", self._client, error)
