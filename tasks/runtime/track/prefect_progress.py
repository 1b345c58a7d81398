"""What Prefect's UI shows of a stage: a progress artifact, and the way to the MLflow run and back.

Requests to Prefect's API run on threads of their own and never fail a stage: trouble is logged.
Nothing here imports Prefect unless the process is inside one of its runs already.
"""

from __future__ import annotations

import contextvars
import logging
import re
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tasks.runtime.track.progress import Outcome, counted

if TYPE_CHECKING:
    from uuid import UUID

    from tasks.runtime.track.tracking import RunTracker

log = logging.getLogger(__name__)

PUBLISH_SECONDS = 5.0  # between two updates of one artifact
CLOSE_SECONDS = 10.0  # that the end of a stage waits for its last update
LINK_SECONDS = 600.0  # that a link waits for MLflow to create the run
FLOW_RUN_TAG = "prefect.flow_run_id"

_tags_lock = threading.Lock()


def inside_run() -> bool:
    """Whether this thread executes a Prefect flow or task run."""
    if "prefect" not in sys.modules:
        return False
    from prefect.context import FlowRunContext, TaskRunContext

    return FlowRunContext.get() is not None or TaskRunContext.get() is not None


def run_tags() -> dict[str, str]:
    """Tags for an MLflow run that lead to the Prefect run at work; {} outside of one."""
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
    tracker: RunTracker, name: str, *, tag_flow_run: bool = False, timeout: float = LINK_SECONDS
) -> threading.Thread | None:
    """Once MLflow has created the run: a link artifact in Prefect.

    `tag_flow_run` also tags the flow run `mlflow:<run id>`: for the run that stands for all of it.
    Returns the thread that waits for it (a caller about to exit may join it); None outside of a
    Prefect run.
    """
    if not inside_run():
        return None

    def publish() -> None:
        if not tracker.wait_created(timeout):
            log.warning("MLflow has not created the run of %s, so Prefect has no link to it", name)
        elif (url := tracker.url) and (run_id := tracker.run_id):
            link = f"[MLflow run of {name}]({url})"
            # Prefect's pages draw a description as Markdown, too, and show it first.
            _create_artifact("markdown", f"mlflow-{slug(name)}", link, link)
            if tag_flow_run:
                _add_flow_run_tag(f"mlflow:{run_id}")

    return _in_background(f"mlflow-link-{name}", publish)


def raise_event(
    event: str, resource: str, name: str, payload: dict[str, Any]
) -> threading.Thread | None:
    """Raises an event that Prefect's automations can act on.

    **Arguments:** `resource`: what it is about, by address; `name`: the same, for people.

    Returns the thread that hands it over; None outside of a Prefect run.
    """
    if not inside_run():
        return None

    def emit() -> None:
        from prefect.events import emit_event

        about = {"prefect.resource.id": f"dynolab.{resource}", "prefect.resource.name": name}
        emit_event(event, about, payload=payload)  # it relates it to the run at work by itself

    return _in_background(f"event-{name}", emit)


class PrefectProgress:
    """Progress artifacts of the Prefect run at work."""

    def __init__(self, seconds: float = PUBLISH_SECONDS) -> None:
        self.seconds = seconds

    def stage(self, name: str, total_steps: int | None) -> PrefectStage:
        """Begin an artifact `progress-<name>`."""
        return PrefectStage(name, total_steps, self.seconds)

    def cached(self, name: str, text: str = "") -> None:
        """Publish an artifact that is complete from the start."""
        stage = PrefectStage(name, None, self.seconds, description=f"{name}: cached {text}".strip())
        stage.close()


class PrefectStage:
    """One artifact; of the updates between two requests only the newest is sent."""

    def __init__(
        self, name: str, total_steps: int | None, seconds: float, description: str | None = None
    ) -> None:
        self._name, self._total, self._seconds = name, total_steps, seconds
        self._percent, self._description = 0.0, description or f"{name}: started"
        self._fixed = description is not None
        self._published: tuple[float, str] | None = None
        self._artifact: UUID | None = None
        self._closing = threading.Event()
        self._thread = _in_background(f"progress-{name}", self._work)

    def update(self, step: int, text: str = "") -> None:
        """Note the newest state for the next request."""
        if not self._closing.is_set():
            if self._total:
                self._percent = min(100.0, 100.0 * step / self._total)
            self._description = f"{self._name}: {counted(step, self._total)} {text}".strip()

    def close(self, outcome: Outcome = "done") -> None:
        """Publish the last state."""
        if self._closing.is_set():
            return
        if outcome == "done":
            self._percent = 100.0
        if not self._fixed:
            self._description += f" ({outcome})"
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while True:
            last = self._closing.is_set()
            self._publish((self._percent, self._description))
            if last:
                return
            self._closing.wait(self._seconds)

    def _publish(self, state: tuple[float, str]) -> None:
        if state == self._published:
            return
        percent, description = state
        try:
            if self._artifact is None:
                key = f"progress-{slug(self._name)}"
                self._artifact = _create_artifact("progress", key, percent, description)
            else:
                _update_artifact(self._artifact, percent, description)
            self._published = state
        except Exception as error:  # Prefect being away must not end the stage
            log.warning("Prefect does not take the progress of %s: %s", self._name, error)


def slug(name: str) -> str:
    """`name` as Prefect's artifact keys allow: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _create_artifact(kind: str, key: str, data: float | str, description: str) -> UUID:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import ArtifactCreate
    from prefect.utilities.context import get_task_and_flow_run_ids

    task_run_id, flow_run_id = get_task_and_flow_run_ids()
    artifact = ArtifactCreate(
        key=key,
        type=kind,
        description=description,
        data=data,
        task_run_id=task_run_id,
        flow_run_id=flow_run_id,
    )
    with get_client(sync_client=True) as client:
        return client.create_artifact(artifact).id


def _update_artifact(artifact: UUID, data: float, description: str) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import ArtifactUpdate

    with get_client(sync_client=True) as client:
        client.update_artifact(artifact, ArtifactUpdate(data=data, description=description))


def _add_flow_run_tag(tag: str) -> None:
    from uuid import UUID

    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    run_id = flow_run.get_id()
    if run_id is None:  # a task run of its own, without a flow
        return
    # The API replaces all tags at once; stages of one flow run may come here together.
    with _tags_lock, get_client(sync_client=True) as client:
        tags = set(client.read_flow_run(UUID(run_id)).tags)
        client.update_flow_run(UUID(run_id), tags=tags | {tag})


def _in_background(name: str, work: Callable[[], None]) -> threading.Thread:
    """A thread with the caller's context, in which Prefect keeps its run and its settings."""
    context = contextvars.copy_context()

    def guarded() -> None:
        try:
            context.run(work)
        except Exception as error:  # Prefect being away must not end the stage
            log.warning("%s could not be published in Prefect: %s", name, error)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread
