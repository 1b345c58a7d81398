"""Progress of stages: a line each in a terminal, plain lines elsewhere, an artifact in Prefect."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import rich.console
    import rich.progress

    from tasks.runtime.track.tail import MetricLine

Outcome = Literal["done", "failed"]

PLAIN_SECONDS = 10.0  # between two plain lines of one stage
RATE_WINDOW = 20  # lines over which steps per second are averaged


class StageProgress(Protocol):
    """Progress of one stage."""

    def update(self, step: int, text: str = "") -> None:
        """Say that `step` steps are done; `text` is shown behind, such as "loss 1.23"."""
        ...

    def close(self, outcome: Outcome = "done") -> None:
        """Say that the stage has ended; further calls do nothing."""
        ...


class Progress(Protocol):
    """Where a study shows how far it is."""

    def stage(self, name: str, total_steps: int | None) -> StageProgress:
        """Begin a stage of `total_steps` steps (None: not known, or not counted in steps)."""
        ...

    def cached(self, name: str, text: str = "") -> None:
        """Say that a stage's committed result is taken from the store."""
        ...


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


class PlainProgress:
    """Lines of text for logs: the first and last of a stage, and one every few seconds."""

    def __init__(self, stream: IO[str], seconds: float = PLAIN_SECONDS) -> None:
        self._stream, self.seconds = stream, seconds

    def stage(self, name: str, total_steps: int | None) -> PlainStage:
        """Begin a stage."""
        return PlainStage(self, name, total_steps)

    def cached(self, name: str, text: str = "") -> None:
        """Write that the stage is cached."""
        self.write(f"{name}: cached {text}".rstrip())

    def write(self, line: str) -> None:
        """Write one line; a reader that has gone away does not end the study."""
        with contextlib.suppress(BrokenPipeError):
            print(line, file=self._stream, flush=True)


class PlainStage:
    """One stage in plain lines."""

    def __init__(self, progress: PlainProgress, name: str, total_steps: int | None) -> None:
        self._progress, self._name, self._total = progress, name, total_steps
        self._begin = self._shown = time.monotonic()
        self._last, self._closed = (0, ""), False
        progress.write(f"{name}: started")

    def update(self, step: int, text: str = "") -> None:
        """Remember the step and show it if the last line is old enough."""
        self._last = (step, text)
        if not self._closed and time.monotonic() - self._shown >= self._progress.seconds:
            self._shown = time.monotonic()
            self._progress.write(f"{self._name}: {self._state()}")

    def close(self, outcome: Outcome = "done") -> None:
        """Write the last line."""
        if not self._closed:
            self._closed = True
            seconds = time.monotonic() - self._begin
            self._progress.write(f"{self._name}: {outcome} in {seconds:.1f} s {self._state()}")

    def _state(self) -> str:
        step, text = self._last
        return f"{counted(step, self._total)} {text}".strip()


class RichProgress:
    """A live line for each running stage; finished lines stay above in the terminal."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        import rich.console

        self.console = rich.console.Console(file=stream or sys.stderr)
        self._live: rich.progress.Progress | None = None
        self._running = 0
        self._lock = threading.Lock()

    def stage(self, name: str, total_steps: int | None) -> RichStage:
        """Add a line for the stage."""
        with self._lock:
            if self._live is None:
                self._live = _rich_lines(self.console)
                self._live.start()
            self._running += 1
            task = self._live.add_task(
                name, total=total_steps, count=counted(0, total_steps), text=""
            )
            return RichStage(self, self._live, task, total_steps)

    def cached(self, name: str, text: str = "") -> None:
        """Print the stage's line, above the live ones if there are any."""
        self.console.print(f"{name:<24} [green]cached[/green] {text}", highlight=False)

    def stage_closed(self) -> None:
        """End the live display with its last running stage, so that nobody else must."""
        with self._lock:
            self._running -= 1
            if self._running == 0 and self._live is not None:
                self._live.stop()
                self._live = None


class RichStage:
    """One stage's line."""

    def __init__(
        self,
        progress: RichProgress,
        live: rich.progress.Progress,
        task: rich.progress.TaskID,
        total_steps: int | None,
    ) -> None:
        self._progress, self._live, self._task, self._total = progress, live, task, total_steps
        self._step, self._closed = 0, False

    def update(self, step: int, text: str = "") -> None:
        """Move the bar."""
        if not self._closed:
            self._step = step
            count = counted(step, self._total)
            self._live.update(self._task, completed=step, count=count, text=text)

    def close(self, outcome: Outcome = "done") -> None:
        """Stop the clock and leave the line as it is."""
        if self._closed:
            return
        self._closed = True
        if outcome == "failed":
            # A total stops the bar of a stage without steps from pulsing on.
            self._live.update(self._task, text="[red]failed[/red]", total=self._total or 1)
        else:
            end = self._step if self._total is None else self._total
            self._live.update(self._task, total=max(end, 1), completed=max(end, 1))
        self._live.stop_task(self._task)
        self._progress.stage_closed()


class CombinedProgress:
    """Shows the same in several places."""

    def __init__(self, places: Sequence[Progress]) -> None:
        self.places = list(places)

    def stage(self, name: str, total_steps: int | None) -> CombinedStage:
        """Begin the stage everywhere."""
        return CombinedStage([place.stage(name, total_steps) for place in self.places])

    def cached(self, name: str, text: str = "") -> None:
        """Say everywhere that the stage is cached."""
        for place in self.places:
            place.cached(name, text)


class CombinedStage:
    """One stage in several places."""

    def __init__(self, places: Sequence[StageProgress]) -> None:
        self.places = list(places)

    def update(self, step: int, text: str = "") -> None:
        """Update everywhere."""
        for place in self.places:
            place.update(step, text)

    def close(self, outcome: Outcome = "done") -> None:
        """Close everywhere."""
        for place in self.places:
            place.close(outcome)


def counted(step: int, total: int | None) -> str:
    """The step as people read it: "50/300", "50" without a total, nothing before the first."""
    if total is not None:
        return f"{step}/{total}"
    return str(step) if step else ""


def _rich_lines(console: rich.console.Console) -> rich.progress.Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]:>11}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
        console=console,
        refresh_per_second=4,
    )
