"""Shows stages in Prefect's UI: a progress artifact, and links to the MLflow run and back.

Requests to Prefect's API run on threads of their own and never fail a stage: errors are logged.
This module imports Prefect only inside a Prefect run.
"""

from __future__ import annotations

import contextvars
import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from tasks.runtime.track.mlflow_pages import charts_page, run_page

if TYPE_CHECKING:
    from uuid import UUID

    from tasks.runtime.track.progress import StageProgress
    from tasks.runtime.track.runs import RunTracker

log = logging.getLogger(__name__)

PUBLISH_SECONDS = 5.0  # between two updates of one artifact
CLOSE_SECONDS = 10.0  # limit on waiting for a stage's last update
LINK_SECONDS = 600.0  # limit on waiting for MLflow to create the run
FLOW_RUN_TAG = "prefect.flow_run_id"

_tags_lock = threading.Lock()


def inside_run() -> bool:
    """Whether this thread executes a Prefect flow or task run."""
    if "prefect" not in sys.modules:
        return False
    from prefect.context import FlowRunContext, TaskRunContext

    return FlowRunContext.get() is not None or TaskRunContext.get() is not None


def run_tags() -> dict[str, str]:
    """Tags that link an MLflow run to the current Prefect run; {} outside of one."""
    if not inside_run():
        return {}
    from prefect.runtime import flow_run, task_run

    tags = {
        FLOW_RUN_TAG: flow_run.get_id(),
        "prefect.flow_run_url": flow_run.get_flow_run_ui_url(),
        "prefect.task_run_id": task_run.get_id(),
    }
    return {key: value for key, value in tags.items() if value}


def link_mlflow_run(
    tracker: RunTracker,
    name: str,
    *,
    tag_flow_run: bool = False,
    charts: bool = False,
    timeout: float = LINK_SECONDS,
) -> threading.Thread | None:
    """Publish a link artifact in Prefect once MLflow has created the run.

    `tag_flow_run`: also tag the flow run `mlflow:<run id>`; for the flow's parent run. `charts`:
    link to the charts of its stages, too. Returns the waiting thread (a caller about to exit may
    join it); None outside of a Prefect run.
    """
    if not inside_run():
        return None

    def publish() -> None:
        if not tracker.wait_created(timeout):
            log.warning("no link in Prefect: MLflow did not create the run of %s in time", name)
        elif run := tracker.run:
            links = {f"MLflow run of {name}": f"{tracker.server}/{run_page(run)}"}
            if charts:
                links[f"Charts of {name}"] = f"{tracker.server}/{charts_page(run)}"
            _publish_links(f"mlflow-{slug(name)}", links)
            if tag_flow_run:
                _add_flow_run_tag(f"mlflow:{run.run_id}")

    return _in_background(f"mlflow-link-{name}", publish)


def link_report(name: str, address: str) -> None:
    """Publish a link artifact that leads to a finished run's page; nothing outside of a run."""
    if inside_run():
        links = {f"Report of {name}": address}
        key = f"report-{slug(name)}"
        _in_background(key, partial(_publish_links, key, links)).join(CLOSE_SECONDS)


def _publish_links(key: str, links: Mapping[str, str]) -> None:
    from prefect.artifacts import create_markdown_artifact

    text = " · ".join(f"[{title}]({address})" for title, address in links.items())
    # Prefect's pages render the description as Markdown, too, and show it first.
    create_markdown_artifact(text, key, text)


def raise_event(
    event: str, resource: str, name: str, payload: dict[str, Any]
) -> threading.Thread | None:
    """Emit an event that Prefect's automations can act on.

    **Arguments:** `resource`: address of the event's subject. `name`: its display name.

    Returns the thread that emits it; None outside of a Prefect run.
    """
    if not inside_run():
        return None

    def emit() -> None:
        from prefect.events import emit_event

        subject = {"prefect.resource.id": f"dynolab.{resource}", "prefect.resource.name": name}
        emit_event(event, subject, payload=payload)  # Prefect relates it to the current run

    return _in_background(f"event-{name}", emit)


class ProgressArtifacts:
    """Display with an artifact `progress-<name>` of the current Prefect run for each stage."""

    def __init__(self, seconds: float = PUBLISH_SECONDS) -> None:
        self.seconds = seconds
        self._publishers: dict[StageProgress, _Publisher] = {}

    def show(self, stage: StageProgress) -> None:
        """Publish the stage soon, or at once when it ends."""
        if stage not in self._publishers:
            self._publishers[stage] = _Publisher(stage, self.seconds)
        if stage.outcome is not None:
            self._publishers.pop(stage).end()


class _Publisher:
    """Thread that updates one artifact with the stage's newest state."""

    def __init__(self, stage: StageProgress, seconds: float) -> None:
        self._stage, self._seconds = stage, seconds
        self._published: tuple[float, str] | None = None
        self._artifact: UUID | None = None
        self._ended = threading.Event()
        self._thread = _in_background(f"progress-{stage.name}", self._work)

    def end(self) -> None:
        self._ended.set()
        self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while True:
            last = self._ended.is_set()
            try:
                self._publish(*_percent_and_description(self._stage))
            except Exception as error:  # a Prefect outage must not end the stage
                name = self._stage.name
                log.warning("cannot publish the progress of %s in Prefect: %s", name, error)
            if last:
                return
            self._ended.wait(self._seconds)

    def _publish(self, percent: float, description: str) -> None:
        from prefect.artifacts import create_progress_artifact, update_progress_artifact

        if self._artifact is None:
            key = f"progress-{slug(self._stage.name)}"
            self._artifact = cast("UUID", create_progress_artifact(percent, key, description))
        elif (percent, description) != self._published:
            update_progress_artifact(self._artifact, percent, description)
        self._published = (percent, description)


def _percent_and_description(stage: StageProgress) -> tuple[float, str]:
    if stage.outcome == "cached":
        return 100.0, f"{stage.name}: cached {stage.text}".strip()
    done = min(1.0, stage.step / stage.total_steps) if stage.total_steps else 0.0
    percent = 100.0 if stage.outcome == "done" else 100.0 * done
    state = f"{stage.count} {stage.text}".strip() or "started"
    return percent, f"{stage.name}: {state}" + (f" ({stage.outcome})" if stage.outcome else "")


def slug(name: str) -> str:
    """Convert `name` to an artifact key: Prefect allows lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _add_flow_run_tag(tag: str) -> None:
    from uuid import UUID

    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    run_id = flow_run.get_id()
    if run_id is None:  # a task run of its own, without a flow
        return
    # The API replaces all tags at once, and several stages of a flow run may do this together.
    with _tags_lock, get_client(sync_client=True) as client:
        tags = set(client.read_flow_run(UUID(run_id)).tags)
        client.update_flow_run(UUID(run_id), tags=tags | {tag})


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
