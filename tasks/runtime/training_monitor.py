"""Sends a training's metrics, reports its alarm and uploads its resume states while it runs."""

from __future__ import annotations

import contextvars
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from dynolab.training.alarm import GAP, RANG, RISE
from dynolab.training.job import STOP
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.progress import StepReporter, emit_event, outcome_of
from tasks.runtime.track.reports import Report
from tasks.runtime.track.tail import MetricLine, MetricsTail, Watched
from tasks.runtime.work import Work

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
EVENT = "dynolab.squeeze.alarm"
TAG = "squeeze.alarm"


class TrainingMonitor:
    """Threads that watch one training run: for its metrics, its reports and its resume states.

    The first reads the ranks' metrics file and feeds tracking, progress and the alarm. The second
    reads it for the clients of DYNOLAB_REPORT_TO, which may wait for their servers. The third
    commits resume states that appear in `states`, which are complete by then, and deletes the
    local copies. If several wait, only the newest is committed; after a training that ended well,
    none. A slow or silent store holds up neither training nor its metrics.
    """

    def __init__(self, work: Work[Any], states: Path, total_steps: int) -> None:
        self._work, self._states = work, states
        self._progress = work.progress.stage(work.name, total_steps)
        metrics = work.output / "metrics.jsonl"
        self._watched = Watched(work.name, states / STOP)
        steps, alarm = StepReporter(self._progress), AlarmReporter(work)
        tail = MetricsTail(metrics, steps, alarm, self._watched)

        def poll() -> None:
            work.tracker.follow(metrics)
            tail.poll()

        self._reports = [
            Report(
                client,
                project=work.tracker.record.experiment,
                name=work.tracker.record.name,
                config=work.config.model_dump(mode="json"),
            )
            for client in Settings.from_environment().report_to
        ]
        reports = MetricsTail(metrics, *self._reports)
        self._metrics_thread = _PollingThread(f"follow-{work.name}", poll)
        self._reports_thread = _PollingThread(f"report-{work.name}", reports.poll)
        self._states_thread = _PollingThread(f"keep-{work.name}", self._keep_newest)

    def __enter__(self) -> TrainingMonitor:
        self._states.mkdir(parents=True, exist_ok=True)
        self._metrics_thread.start()
        self._reports_thread.start()
        self._states_thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._metrics_thread.end(poll_again=True)
        outcome = "done" if error is None else outcome_of(error)
        self._progress.close(outcome)
        self._states_thread.end(poll_again=kind is not None)
        self._reports_thread.end(poll_again=outcome != "cancelled")
        for report in self._reports if outcome != "cancelled" else ():
            report.finish(failed=outcome == "failed")
        if kind is None:
            self._check_threads()

    def check(self) -> None:
        """Raise a thread's exception, if there is one, and `Pruned` if training should end."""
        self._check_threads()
        self._watched.check()

    def _check_threads(self) -> None:
        self._metrics_thread.check()
        self._states_thread.check()

    def _keep_newest(self) -> None:
        states = sorted(path for path in self._states.iterdir() if path.name.startswith("step-"))
        for state in states[-1:]:
            self._work.commit_resume(int(state.name.removeprefix("step-")), state)
        for state in states:
            shutil.rmtree(state)


class _PollingThread:
    """A thread that calls `poll` every POLL_SECONDS; `check` raises the exception that ended it."""

    def __init__(self, name: str, poll: Callable[[], object]) -> None:
        self._poll = poll
        self._ended = threading.Event()
        self._poll_again = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def end(self, *, poll_again: bool) -> None:
        """Stop; wait for the current call and, with `poll_again`, for a last one."""
        self._poll_again = poll_again
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """Raise the exception that ended the thread, if there is one."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._ended.wait(POLL_SECONDS):
                self._poll()
            if self._poll_again:
                self._poll()
        except BaseException as error:  # `check` raises it in the training thread
            self._error = error


class AlarmReporter:
    """Reads a training's metric lines; tells MLflow (a tag) and Prefect (an event) of an alarm.

    Create it on the stage's thread: it keeps that thread's Prefect context, so that any thread
    may call it.
    """

    def __init__(self, work: Work[Any]) -> None:
        self._work = work
        self._context = contextvars.copy_context()

    def __call__(self, line: MetricLine) -> None:
        """Read one line."""
        if RANG not in line.metrics:
            return
        name, gap, rise = self._work.name, line.metrics[GAP], line.metrics[RISE]
        message = f"step {line.step}: the gap y* - chosen grew by {rise:.2f} nats to {gap:.2f}"
        log.warning("%s: squeezing alarm at %s", name, message)
        self._work.tracker.set_tags({TAG: message})
        payload = {"stage": name, "step": line.step, "gap": gap, "rise": rise, "unit": "nats"}
        self._context.run(emit_event, EVENT, self._work.address, name, payload)
