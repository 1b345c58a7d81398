"""Sends a training's metrics and uploads its resume states while it runs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from tasks.runtime.report_alarm import AlarmBell
from tasks.runtime.track.progress import StepReporter
from tasks.runtime.track.tail import MetricLine, MetricsTail, Watched
from tasks.runtime.work import Work

POLL_SECONDS = 0.5


class Supervisor:
    """Two threads that look after one training run while it runs, and once more at its end.

    Metrics go from the ranks' file to tracking, progress and the alarm's bell. A resume state that
    appears in `states` is whole; it is committed beside training and then deleted here. Only the
    newest is taken where several wait, and none once training is done. A store that is slow or
    silent holds up neither training nor its metrics.
    """

    def __init__(self, work: Work[Any], states: Path, total_steps: int) -> None:
        self._work, self._states = work, states
        self._progress = work.progress.stage(work.name, total_steps)
        metrics = work.output / "metrics.jsonl"
        self._watched = Watched(work.name)
        self._listeners = (StepReporter(self._progress), AlarmBell(work), self._watched)
        self._tail = MetricsTail(metrics, work.tracker, self._on_line)
        self._following = _Beside(f"follow-{work.name}", self._tail.poll)
        self._keeping = _Beside(f"keep-{work.name}", self._keep_newest)

    def __enter__(self) -> Supervisor:
        self._states.mkdir(parents=True, exist_ok=True)
        self._following.start()
        self._keeping.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._following.end(look_again=True)
        self._progress.close("done" if kind is None else "failed")
        self._keeping.end(look_again=kind is not None)
        if kind is None:
            self._check_threads()

    def check(self) -> None:
        """Raises what ended a thread, if anything did, and `Pruned` where training shall end."""
        self._check_threads()
        self._watched.check()

    def _check_threads(self) -> None:
        self._following.check()
        self._keeping.check()

    def _on_line(self, line: MetricLine) -> None:
        for listener in self._listeners:
            listener(line)

    def _keep_newest(self) -> None:
        states = sorted(path for path in self._states.iterdir() if path.name.startswith("step-"))
        for state in states[-1:]:
            self._work.commit_resume(int(state.name.removeprefix("step-")), state, {})
        for state in states:
            shutil.rmtree(state)


class _Beside:
    """A thread that looks every POLL_SECONDS; what ends it early is handed on by `check`."""

    def __init__(self, name: str, look: Callable[[], object]) -> None:
        self._look = look
        self._ended = threading.Event()
        self._again = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def end(self, *, look_again: bool) -> None:
        """Waits for the look under way, and for a last one where that is asked for."""
        self._again = look_again
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """Raises what ended the thread."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._ended.wait(POLL_SECONDS):
                self._look()
            if self._again:
                self._look()
        except BaseException as error:  # handed to the training thread by `check`
            self._error = error
