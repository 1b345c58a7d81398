"""Progress of stages: lines in a terminal or a log, and artifacts and links in Prefect.

Requests to Prefect's API run on threads of their own and never fail a stage: errors are logged.
Prefect is imported only inside a Prefect run.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol, cast

from dynolab.costs.machines import duration
from tasks.runtime.track.mlflow_pages import SUMMARY, charts_page, literal, run_page

if TYPE_CHECKING:
    from uuid import UUID

    import rich.progress

    from dynolab.results.study import MetricsLine
    from tasks.runtime.track.runs import RunTracker

log = logging.getLogger(__name__)

Outcome = Literal["done", "failed", "cancelled", "cached", "noted"]

PLAIN_SECONDS = 10.0  # between two plain lines of one stage
RATE_WINDOW = 20  # metric lines over which steps per second are averaged
PUBLISH_SECONDS = 5.0  # between two updates of one artifact
CLOSE_SECONDS = 10.0  # limit on waiting for a stage's last update
LINK_SECONDS = 600.0  # limit on waiting for MLflow to create the run
FLOW_RUN_TAG = "prefect.flow_run_id"


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

    def __init__(
        self, name: str, total_steps: int | None, displays: tuple[Display, ...], step: int = 0
    ) -> None:
        self.name, self.total_steps, self._displays = name, total_steps, displays
        self.step, self.text = step, ""
        self.outcome: Outcome | None = None
        self.ended = threading.Event()
        self.began = time.monotonic()
        self._first: tuple[float, int] | None = None  # when the first step was shown, and which

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
        began, first = self._first
        if self.step <= first or self.step >= self.total_steps:
            return ""
        step_seconds = (time.monotonic() - began) / (self.step - first)
        return f"{duration((self.total_steps - self.step) * step_seconds)} left"

    def update(self, step: int, text: str = "") -> None:
        """Show that `step` steps are done, followed by `text`, such as "loss 1.23"."""
        if self.outcome is None:
            if step:  # the time before the first step says nothing about steps
                self._first = self._first or (time.monotonic(), step)
            self.step, self.text = step, text
            self.show()

    def close(self, outcome: Outcome = "done") -> None:
        """Show that the stage has ended; further calls do nothing."""
        if self.outcome is None:
            self.outcome = outcome
            self.ended.set()
            self.show()

    def show(self) -> None:
        """Bring the displays up to date."""
        for display in self._displays:
            display.show(self)


class Progress:
    """Progress of a study's stages, on all displays."""

    def __init__(self, *displays: Display) -> None:
        self.displays = displays

    def stage(self, name: str, total_steps: int | None, step: int = 0) -> StageProgress:
        """Begin a stage, of which `step` steps are done."""
        stage = StageProgress(name, total_steps, self.displays, step)
        stage.show()
        return stage

    def cached(self, name: str, text: str = "") -> None:
        """Show that a stage's result comes from the store."""
        stage = StageProgress(name, None, self.displays)
        stage.text = text
        stage.close("cached")

    def note(self, name: str, text: str) -> None:
        """Show a remark on a stage that is about to begin."""
        stage = StageProgress(name, None, self.displays)
        stage.text = text
        stage.close("noted")


class StepReporter:
    """Turns lines of metrics.jsonl into progress: step, loss, steps per second of training."""

    def __init__(self, stage: StageProgress) -> None:
        self.stage = stage
        self._recent: deque[tuple[int, float]] = deque(maxlen=RATE_WINDOW)

    def __call__(self, line: MetricsLine) -> None:
        """Show one line.

        A resumed training's file begins with lines that are older than its first step; they are
        not shown.
        """
        if line.step < self.stage.step:
            return
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
        now = time.monotonic()
        parts = [f"{stage.count} {stage.text}".strip(), stage.left]
        state = ", ".join(filter(None, parts))
        if stage.outcome == "cached":
            state = f"cached {stage.text}"
        elif stage.outcome == "noted":
            state = stage.text
        elif stage.outcome is not None:
            state = f"{stage.outcome} in {now - stage.began:.1f} s {state}"
            self._shown.pop(stage, None)
        else:
            if stage not in self._shown:
                state = "started"
            # Too soon. A text before the first step, such as "loads the model", is always written.
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
        if stage.outcome in ("cached", "noted"):
            label = "[green]cached[/green] " if stage.outcome == "cached" else ""
            self.console.print(f"{stage.name:<24} {label}{stage.text}", highlight=False)
            return
        with self._lock:
            if self._live is None:
                self._live = self._begin()
            if stage not in self._tasks:
                self._tasks[stage] = self._live.add_task(stage.name, total=None, count="", text="")
            task = self._tasks[stage]
            total = stage.total_steps
            step = stage.step
            text = stage.text
            if stage.outcome in ("failed", "cancelled"):
                # Without a total, the bar of a stage without steps would keep pulsing.
                total, text = total or 1, f"[red]{stage.outcome}[/red]"
            elif stage.outcome is not None:  # done: a full bar, also of a stage without steps
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


def inside_prefect_run() -> bool:
    """Whether this thread executes a Prefect flow or task run."""
    if "prefect" not in sys.modules:
        return False
    from prefect.context import FlowRunContext, TaskRunContext

    return FlowRunContext.get() is not None or TaskRunContext.get() is not None


def is_pause(error: BaseException | None) -> bool:
    """Whether Prefect ends this run because somebody pauses it, to resume it later."""
    if "prefect" not in sys.modules:
        return False
    from prefect.exceptions import Pause

    return isinstance(error, Pause)


def run_tags() -> dict[str, str]:
    """Tags that link an MLflow run to the current Prefect run; {} outside of one."""
    if not inside_prefect_run():
        return {}
    from prefect.runtime import flow_run, task_run

    tags = {
        FLOW_RUN_TAG: flow_run.get_id(),
        "prefect.flow_run_url": flow_run.get_flow_run_ui_url(),
        "prefect.task_run_id": task_run.get_id(),
    }
    return {key: value for key, value in tags.items() if value}


def run_title(name: str) -> str:
    """A study's name, in a Prefect run with the run's, so that runs of one study are told apart."""
    if not inside_prefect_run():
        return name
    from prefect.runtime import flow_run

    run = str(flow_run.name or name)
    return run if slug(name) in slug(run) else f"{name} ({run})"


def publish_links(
    kind: str,
    name: str,
    links: Mapping[str, str],
    lines: Sequence[str] = (),
    tracker: RunTracker | None = None,
    *,
    charts: bool = False,
    seconds: float = 0.0,
) -> None:
    """Publish an artifact `KIND-NAME` of the current Prefect run, or renew its summary.

    **Arguments:** `links`: title → address. `lines`: Markdown below them. `tracker`: the run in
    MLflow, which a link leads to once it is created, and with `charts` one to the charts of its
    stages. `seconds`: limit on waiting for all of this.
    """
    if not inside_prefect_run():
        return
    key, number = f"{kind}-{slug(name)}", next(_numbers)
    if kind == SUMMARY:
        # Prefect's pages lead from an artifact to the newest one of its key, whichever run made it.
        from prefect.runtime import flow_run

        key = f"{key}-{flow_run.id[:8]}"
        lines = [f"**{literal(run_title(name))}**", *lines]
    _newest[key] = number

    def publish() -> None:
        addresses = dict(links)
        if tracker is not None and not tracker.wait_created(LINK_SECONDS):
            log.warning("no link in Prefect: MLflow did not create the run of %s in time", name)
        elif tracker is not None and (run := tracker.run):
            addresses[f"MLflow run of {name}"] = f"{tracker.server}/{run_page(run)}"
            if charts:
                addresses[f"Charts of {name}"] = f"{tracker.server}/{charts_page(run)}"
        linked = " · ".join(f"[{title}]({address})" for title, address in addresses.items())
        with _publishing:
            if _newest[key] == number and (linked or lines):
                _publish_text(key, [linked, *lines])

    _in_background(key, publish).join(seconds)


_publishing = threading.Lock()
_newest: dict[str, int] = {}  # key of an artifact → number of its newest text
_numbers = count()


def _publish_text(key: str, lines: Sequence[str]) -> None:
    from prefect.artifacts import create_markdown_artifact
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import ArtifactUpdate
    from prefect.client.schemas.filters import ArtifactFilter
    from prefect.runtime import flow_run

    # As the description, which Prefect's pages render, too: what is behind it takes a click more.
    text = "\n\n".join(filter(None, lines))
    mine = {"key": {"any_": [key]}, "flow_run_id": {"any_": [flow_run.id]}}
    with get_client(sync_client=True) as client:
        earlier = client.read_artifacts(artifact_filter=ArtifactFilter.model_validate(mine))
        if earlier and key.startswith(SUMMARY):  # of this process, or of an attempt before it
            client.update_artifact(earlier[0].id, ArtifactUpdate(data=text, description=text))
        else:
            create_markdown_artifact(text, key, text)


def emit_event(
    event: str, resource: str, name: str, payload: dict[str, Any]
) -> threading.Thread | None:
    """Emit an event that Prefect's automations can act on.

    **Arguments:** `resource`: address of the event's subject. `name`: its display name.

    Returns the thread that emits it; None outside of a Prefect run.
    """
    if not inside_prefect_run():
        return None

    def emit() -> None:
        from prefect.events import emit_event

        subject = {"prefect.resource.id": f"dynolab.{resource}", "prefect.resource.name": name}
        emit_event(event, subject, payload=payload)  # Prefect relates it to the current run

    return _in_background(f"event-{name}", emit)


class ProgressArtifacts:
    """Display with an artifact `progress-<name>` of the current Prefect run for each stage.

    A stage whose result was in the store has none: its task's state `Cached` says so.
    """

    def __init__(self, seconds: float = PUBLISH_SECONDS) -> None:
        self.seconds = seconds
        self._publishers: dict[StageProgress, threading.Thread] = {}

    def show(self, stage: StageProgress) -> None:
        """Publish the stage soon, or at once when it ends."""
        if stage.outcome in ("cached", "noted"):
            return
        if stage not in self._publishers:
            publish = partial(_publish_until_end, stage, self.seconds)
            self._publishers[stage] = _in_background(f"progress-{stage.name}", publish)
        if stage.outcome is not None:
            self._publishers.pop(stage).join(CLOSE_SECONDS)


def _publish_until_end(stage: StageProgress, seconds: float) -> None:
    """Update one artifact with a stage's newest state."""
    from prefect.artifacts import create_progress_artifact, update_progress_artifact

    artifact: UUID | None = None
    published: tuple[float, str] | None = None
    while True:
        # Read first, so that a stage that ends meanwhile is published once more.
        ended = stage.ended.is_set()
        percent, description = state = _percent_and_description(stage)
        try:
            if artifact is None:
                key = f"progress-{slug(stage.name)}"
                artifact = cast("UUID", create_progress_artifact(percent, key, description))
            elif state != published:
                update_progress_artifact(artifact, percent, description)
            published = state
        except Exception as error:  # a Prefect outage must not end the stage
            log.warning("cannot publish the progress of %s in Prefect: %s", stage.name, error)
        if ended:
            return
        stage.ended.wait(seconds)


def _percent_and_description(stage: StageProgress) -> tuple[float, str]:
    share = min(1.0, stage.step / stage.total_steps) if stage.total_steps else 0.0
    percent = 100.0 if stage.outcome == "done" else 100.0 * share
    state = f"{stage.count} {stage.text}".strip() or "started"
    return percent, f"{stage.name}: {state}" + (f" ({stage.outcome})" if stage.outcome else "")


def slug(name: str) -> str:
    """Convert `name` to an artifact key: Prefect allows lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _in_background(name: str, work: Callable[[], None]) -> threading.Thread:
    """Start a thread with the caller's context, which holds Prefect's run and settings."""
    context = contextvars.copy_context()

    def guarded() -> None:
        try:
            context.run(work)
        except Exception as error:  # a Prefect outage must not end the stage
            log.warning("%s could not be published in Prefect: %s", name, error)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread
