"""Progress of stages: live lines in a terminal, plain lines elsewhere, artifacts in Prefect."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from typing import IO, TYPE_CHECKING, Literal, Protocol

from dynolab.costs.stage import duration

if TYPE_CHECKING:
    import rich.progress

    from tasks.runtime.track.tail import MetricLine

Outcome = Literal["done", "failed", "cancelled", "cached"]

PLAIN_SECONDS = 10.0  # between two plain lines of one stage
RATE_WINDOW = 20  # metric lines over which steps per second are averaged


def outcome_of(error: BaseException) -> Outcome:
    """How a stage ended that raised: Ctrl-C and SIGTERM cancel it, anything else fails it."""
    return "failed" if isinstance(error, Exception) else "cancelled"


class Display(Protocol):
    """A place that shows progress."""

    def show(self, stage: StageProgress) -> None:
        """Show a stage; called when it begins, after every update, and when it ends."""
        ...


class StageProgress:
    """Progress of one stage, on all displays.

    `total_steps` is None if it is unknown or the stage has no steps. `outcome` is None until the
    stage ends.
    """

    def __init__(self, name: str, total_steps: int | None, displays: tuple[Display, ...]) -> None:
        self.name, self.total_steps, self._displays = name, total_steps, displays
        self.step, self.text = 0, ""
        self.outcome: Outcome | None = None
        self.began = time.monotonic()
        self._first: tuple[float, int] | None = None

    @property
    def count(self) -> str:
        """The step as text: "50/300", or "50" without a total; then empty before the first step."""
        if self.total_steps is not None:
            return f"{self.step}/{self.total_steps}"
        return str(self.step) if self.step else ""

    @property
    def left(self) -> str:
        """Time left at the pace since the first step, such as "3 min left"; empty if unknown."""
        if self.outcome is not None or self._first is None or not self.total_steps:
            return ""
        (began, first), now = self._first, time.monotonic()
        if self.step <= first or self.step >= self.total_steps:
            return ""
        return (
            f"{duration((self.total_steps - self.step) * (now - began) / (self.step - first))} left"
        )

    def update(self, step: int, text: str = "") -> None:
        """Show that `step` steps are done, followed by `text`, such as "loss 1.23"."""
        if self.outcome is None:
            if step:  # what comes before the first step has another pace
                self._first = self._first or (time.monotonic(), step)
            self.step, self.text = step, text
            self.show()

    def close(self, outcome: Outcome = "done") -> None:
        """Show that the stage has ended; further calls do nothing."""
        if self.outcome is None:
            self.outcome = outcome
            self.show()

    def show(self) -> None:
        """Bring the displays up to date."""
        for display in self._displays:
            display.show(self)


class Progress:
    """Progress of a study's stages, on all displays."""

    def __init__(self, *displays: Display) -> None:
        self.displays = displays

    def stage(self, name: str, total_steps: int | None) -> StageProgress:
        """Begin a stage."""
        stage = StageProgress(name, total_steps, self.displays)
        stage.show()
        return stage

    def cached(self, name: str, text: str = "") -> None:
        """Show that a stage's result comes from the store."""
        stage = StageProgress(name, None, self.displays)
        stage.text = text
        stage.close("cached")


class StepReporter:
    """Turns lines of metrics.jsonl into progress: step, loss, steps per second of training."""

    def __init__(self, stage: StageProgress) -> None:
        self.stage = stage
        self._recent: deque[tuple[int, float]] = deque(maxlen=RATE_WINDOW)

    def __call__(self, line: MetricLine) -> None:
        """Show one line."""
        self._recent.append((line.step, line.time))
        (first_step, first_time), (last_step, last_time) = self._recent[0], self._recent[-1]
        texts = []
        if "train/loss" in line.metrics:
            texts.append(f"loss {line.metrics['train/loss']:.4g}")
        if last_time > first_time:
            texts.append(f"{(last_step - first_step) / (last_time - first_time):.3g} steps/s")
        self.stage.update(line.step, ", ".join(texts))


class PlainLines:
    """Lines of text for logs: the first and last of a stage, and one every few seconds.

    What a stage does before its first step is shown at once.
    """

    def __init__(self, stream: IO[str], seconds: float = PLAIN_SECONDS) -> None:
        self._stream, self.seconds = stream, seconds
        self._shown: dict[StageProgress, float] = {}  # running stage → time of its last line

    def show(self, stage: StageProgress) -> None:
        """Write a line if it is due; ignores a closed pipe, so that the study goes on."""
        now, parts = time.monotonic(), [f"{stage.count} {stage.text}".strip(), stage.left]
        state = ", ".join(filter(None, parts))
        if stage.outcome == "cached":
            state = f"cached {stage.text}"
        elif stage.outcome is not None:
            state = f"{stage.outcome} in {now - stage.began:.1f} s {state}"
            self._shown.pop(stage, None)
        else:
            if stage not in self._shown:
                state = "started"
            elif now - self._shown[stage] < self.seconds and (stage.step or not stage.text):
                return
            self._shown[stage] = now
        with contextlib.suppress(BrokenPipeError):
            print(f"{stage.name}: {state.strip()}", file=self._stream, flush=True)


class RichLines:
    """A live line for each running stage; finished lines stay above in the terminal."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        import rich.console

        self.console = rich.console.Console(file=stream or sys.stderr)
        self._live: rich.progress.Progress | None = None
        self._tasks: dict[StageProgress, rich.progress.TaskID] = {}
        self._lock = threading.Lock()

    def show(self, stage: StageProgress) -> None:
        """Move the stage's bar; the live display ends with the last running stage."""
        if stage.outcome == "cached":
            line = f"{stage.name:<24} [green]cached[/green] {stage.text}"
            self.console.print(line, highlight=False)
            return
        with self._lock:
            if self._live is None:
                self._live = self._begin()
            if stage not in self._tasks:
                self._tasks[stage] = self._live.add_task(stage.name, total=None, count="", text="")
            task, total, step, text = self._tasks[stage], stage.total_steps, stage.step, stage.text
            if stage.outcome in ("failed", "cancelled"):
                # Without a total, the bar of a stage without steps would keep pulsing.
                total, text = total or 1, f"[red]{stage.outcome}[/red]"
            elif stage.outcome is not None:
                total = step = max(step if total is None else total, 1)
            text = ", ".join(filter(None, (text, stage.left)))
            self._live.update(task, total=total, completed=step, count=stage.count, text=text)
            if stage.outcome is not None:
                self._live.stop_task(self._tasks.pop(stage))
                if not self._tasks:
                    self._live.stop()
                    self._live = None

    def _begin(self) -> rich.progress.Progress:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        live = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]:>11}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}"),
            console=self.console,
            refresh_per_second=4,
        )
        live.start()
        return live
