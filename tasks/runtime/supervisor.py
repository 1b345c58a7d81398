"""Beside training: follows its metrics and takes its resume states to the store."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from tasks.runtime.progress import StepReporter
from tasks.runtime.tail import MetricsTail
from tasks.runtime.work import Work

POLL_SECONDS = 0.5


class Supervisor:
    """A thread that looks after one training run while it runs, and once more at its end.

    Metrics go from the ranks' file to tracking and progress. A resume state that appears in
    `states` is whole; it is committed beside training and then deleted here. Only the newest is
    taken where several wait.
    """

    def __init__(self, work: Work[Any], states: Path, total_steps: int) -> None:
        self._work, self._states = work, states
        self._progress = work.progress.stage(work.name, total_steps)
        metrics = work.output / "metrics.jsonl"
        self._tail = MetricsTail(metrics, work.tracker, StepReporter(self._progress))
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"supervise-{work.name}")

    def __enter__(self) -> Supervisor:
        self._states.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._ended.set()
        self._thread.join()
        self._progress.close("done" if kind is None else "failed")
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raises what ended the thread, if anything did."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._ended.wait(POLL_SECONDS):
                self._look()
            self._look()
        except BaseException as error:  # handed to the training thread by `check`
            self._error = error

    def _look(self) -> None:
        self._tail.poll()
        found = sorted(path for path in self._states.iterdir() if path.name.startswith("step-"))
        for path in found[-1:]:
            self._work.commit_resume(int(path.name.removeprefix("step-")), path, {})
        for path in found:
            shutil.rmtree(path)
