"""Sends outboxes to an MLflow server; sending twice gives the same run.

After an interruption operations are sent again. The server drops a metric that it already has with
the same key, step, timestamp and value; timestamps come from the outbox. Before a run is created,
the sender looks for one tagged with the outbox's name, and before a model version, for one with the
same source. Params, tags, artifacts and the final status overwrite themselves. Steps that a
reopened run already has are skipped, because a resumed stage logs them again with new timestamps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mlflow.entities
import requests
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException, RestException
from mlflow.utils.rest_utils import verify_rest_response

from tasks.runtime.track import outbox
from tasks.runtime.track.client import upload_timeout
from tasks.runtime.track.mlflow_pages import DESCRIPTION_TAG, charts_of, description, run_page
from tasks.runtime.track.outbox import OUTBOX_TAG, STAGE_KEY_TAG, Operation, Outbox, Run, Sent

log = logging.getLogger(__name__)

PARENT_TAG = "mlflow.parentRunId"
OPERATIONS_PER_READ = 1000
ENTITIES_PER_BATCH = 1000
# MLflow's UI then opens on runs and their curves, not on traces of language model calls.
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
_TRY_AGAIN = {401, 403, 408, 425, 429}  # a wrong login or throttling may pass
_NOT_MLFLOW = "the server does not answer like MLflow"

Entity = Metric | Param | RunTag


def is_refusal(error: MlflowException) -> bool:
    """Whether MLflow rejects the request for good (and not a proxy in front of it)."""
    if isinstance(error, RestException):
        status = error.get_http_status_code()
        return 400 <= status < 500 and status not in _TRY_AGAIN
    return error.error_code == "INVALID_PARAMETER_VALUE"  # raised by the client itself


class Sender:
    """Sends `boxes` (id → outbox), whose files are in `folder`. Not thread-safe."""

    def __init__(self, client: MlflowClient, folder: Path, boxes: dict[str, Outbox]) -> None:
        self.client, self.folder, self.boxes = client, folder, boxes
        self.reachable = True
        self._held_steps: dict[str, dict[str, set[int]]] = {}  # reopened run id → metric → steps
        self._experiments: dict[str, str] = {}

    def send_all(self) -> bool:
        """Send all outboxes, oldest first; returns whether the server was usable."""
        usable = True
        for box in sorted([*self.boxes.values()], key=lambda box: box.id):
            try:
                self._send_box(box)
            except MlflowException as error:
                if is_refusal(error):
                    log.warning("MLflow refuses %s; setting it aside: %s", box.path, error)
                    box.set_aside()
                    del self.boxes[box.id]
                    continue
                usable = False
                level = logging.WARNING if self.reachable else logging.DEBUG  # once per outage
                log.log(level, "MLflow cannot be used; tracking waits in the outbox: %s", error)
                self.reachable = False
            except Exception:  # one outbox's error must stop neither the others nor training
                usable = False
                log.exception("%s could not be sent; trying again later", box.path)
        if usable and not self.reachable:
            log.info("MLflow at %s is back", self.client.tracking_uri)
        self.reachable = usable
        return usable

    def _send_box(self, box: Outbox) -> None:
        run = box.sent.run or self._open_run(box)
        if run is None:
            return
        finished = False
        while not finished and (operations := box.unsent(OPERATIONS_PER_READ)):
            finished = self._send(box, run.run_id, operations)
        # Nothing follows the final status, and a dead process appends nothing more.
        if finished or not box.live:
            if not finished and self.client.get_run(run.run_id).info.status == "RUNNING":
                self.client.set_terminated(run.run_id, "KILLED", box.last_written_ms)
            self._held_steps.pop(run.run_id, None)
            box.remove()
            del self.boxes[box.id]  # last: `send_pending` returns when it is gone

    def _send(self, box: Outbox, run_id: str, operations: list[tuple[Operation, int]]) -> bool:
        """Send operations in order; returns whether the final status was among them."""
        batch: list[Entity] = []
        count = 0
        for number, (operation, offset) in enumerate(operations, start=1):
            kind = operation.get("op")
            count += 1
            if kind in ("metrics", "params", "tags"):
                batch += self._entities(box, run_id, operation)
                if len(batch) < ENTITIES_PER_BATCH and number < len(operations):
                    continue
            self._log_batch(run_id, batch)
            if kind == "artifact":
                self._log_artifact(box, run_id, operation)
            elif kind == "model":
                self._register_model(run_id, operation)
            elif kind == "describe" and box.sent.run:
                self._describe(box.sent.run, operation)
            elif kind == "finish":
                self.client.set_terminated(run_id, operation["status"], operation["time"])
                return True
            box.mark(replace(box.sent, offset=offset), count)
            if kind == "artifact":
                box.artifact(operation["file"]).unlink(missing_ok=True)
            batch, count = [], 0
        return False

    def _entities(self, box: Outbox, run_id: str, operation: Operation) -> list[Entity]:
        values: dict[str, Any] = operation["values"]
        if operation["op"] == "params":
            return [Param(key, value) for key, value in values.items()]
        if operation["op"] == "tags":
            return [RunTag(key, value) for key, value in values.items()]
        step, time_ms = operation["step"], operation["time"]
        return [
            Metric(key, value, time_ms, step)
            for key, value in values.items()
            if not (box.sent.may_hold_steps and step in self._steps(run_id, key))
        ]

    def _steps(self, run_id: str, key: str) -> set[int]:
        """Steps at which the run has a value of the metric."""
        held = self._held_steps.setdefault(run_id, {})
        if key not in held:
            held[key] = {metric.step for metric in self.client.get_metric_history(run_id, key)}
        return held[key]

    def _log_batch(self, run_id: str, batch: list[Entity]) -> None:
        """Log a batch; halve one that is refused, so that only the faulty values are dropped."""
        metrics = [entity for entity in batch if isinstance(entity, Metric)]
        params = [entity for entity in batch if isinstance(entity, Param)]
        tags = {entity.key: entity for entity in batch if isinstance(entity, RunTag)}
        try:
            self.client.log_batch(run_id, metrics, params, list(tags.values()))
        except MlflowException as error:
            if not is_refusal(error):
                raise
            if len(batch) > 1:
                self._log_batch(run_id, batch[: len(batch) // 2])
                self._log_batch(run_id, batch[len(batch) // 2 :])
                return
            if self.client.get_run(run_id).info.lifecycle_stage != "active":
                raise _refusal(f"run {run_id} is deleted") from error
            log.warning("MLflow refuses one value of run %s: %s", run_id, error)

    def _log_artifact(self, box: Outbox, run_id: str, operation: Operation) -> None:
        file, run = box.artifact(operation["file"]), box.sent.run
        if run is None or urlsplit(run.artifact_uri).scheme != "mlflow-artifacts":
            log.warning("skipping %s: MLflow does not serve artifacts (--serve-artifacts)", file)
            return
        with _refusal_logged(f"the artifact {file.name}"), upload_timeout():
            try:
                self.client.log_artifact(run_id, str(file), operation["folder"].strip("/") or None)
            except FileNotFoundError:
                log.info("%s was already sent", file)
            except requests.HTTPError as error:
                verify_rest_response(error.response, "artifacts")  # raises MlflowException

    def _register_model(self, run_id: str, operation: Operation) -> None:
        """Create a version of the registered model, unless one already has this source."""
        name, source = operation["name"], operation["source"]
        with _refusal_logged(f"the model {name} at {source}"):
            with _unless_it_exists():
                self.client.create_registered_model(name)
            condition = f"name = '{name}' and source_path = '{source}'"
            if not self.client.search_model_versions(condition):
                self.client.create_model_version(
                    name,
                    source,
                    operation["run_id"] or run_id,
                    operation["tags"],
                    await_creation_for=0,
                )

    def _describe(self, run: Run, operation: Operation) -> None:
        """Lead from the run's description to its page, and to its charts, which are set up."""
        trainings, page = operation["trainings"], operation["page"]
        if page is not None:
            made_by, artifact = page
            page = run_page(replace(run, run_id=made_by), artifact)
        with _refusal_logged(f"the description of run {run.run_id}"):
            if trainings is not None:
                self.client.set_experiment_tag(run.experiment_id, *charts_of(run, trainings))
            text = description(run, charts=trainings is not None, page=page)
            self.client.set_tag(run.run_id, DESCRIPTION_TAG, text)

    def _open_run(self, box: Outbox) -> Run | None:
        """Find or create the run; None if another process must first send an earlier outbox."""
        first, offset = box.unsent(1)[0]
        if first.get("op") != "create":
            raise _refusal("the outbox does not begin with the run's creation")
        resume_key = first["resume_key"]
        if resume_key and self._has_unsent_predecessor(box, resume_key):
            return None
        experiment = self._experiment(first["experiment"])
        tags = dict(first["tags"]) | {OUTBOX_TAG: box.id}
        run = self._find_run(experiment, f"tags.`{OUTBOX_TAG}` = '{box.id}'")
        if run is None and resume_key:
            unfinished = "attributes.status != 'FINISHED'"
            same_stage = f"tags.`{STAGE_KEY_TAG}` = '{resume_key}'"
            run = self._find_run(experiment, f"{same_stage} and {unfinished}")
        parent_known, parent = self._parent(experiment, first)
        if not parent_known:
            return None
        if parent:
            tags[PARENT_TAG] = parent
        reopened = run is not None
        if run is None:
            run = _run(
                self.client.create_run(experiment, first["time"], tags, run_name=first["name"])
            )
        else:
            self.client.update_run(run.run_id, "RUNNING")
            self._log_batch(run.run_id, [RunTag(key, value) for key, value in tags.items()])
        box.mark(Sent(offset, run, may_hold_steps=reopened), 1)
        return run

    def _find_run(self, experiment: str, condition: str) -> Run | None:
        """The newest run of the experiment that matches the condition."""
        newest_first = ["attributes.start_time DESC"]
        runs = self.client.search_runs(
            [experiment], condition, max_results=1, order_by=newest_first
        )
        return _run(runs[0]) if runs else None

    def _has_unsent_predecessor(self, box: Outbox, resume_key: str) -> bool:
        """Whether another process still has to send an older outbox of the same stage.

        Sent out of order, the two would create two runs for one stage.
        """
        return any(
            path.stem < box.id
            and path.stem not in self.boxes
            and outbox.first_operation(path).get("resume_key") == resume_key
            for path in self.folder.glob("*.jsonl")
        )

    def _parent(self, experiment: str, first: Operation) -> tuple[bool, str | None]:
        """(Is known, run id) of the parent run; unknown until its outbox has created it."""
        if first["parent_run"] or not first["parent_outbox"]:
            return True, first["parent_run"]
        path = self.folder / f"{first['parent_outbox']}.jsonl"
        run = outbox.sent_run(path)
        if run is None and path.exists():
            return False, None
        run = run or self._find_run(experiment, f"tags.`{OUTBOX_TAG}` = '{first['parent_outbox']}'")
        return True, run.run_id if run else None

    def _experiment(self, name: str) -> str:
        """Id of the experiment `name`; creates it, or restores it if it was deleted."""
        if name not in self._experiments:
            experiment = self.client.get_experiment_by_name(name)
            if experiment is None:
                with _unless_it_exists():  # another process may create it first
                    self.client.create_experiment(name, tags=_EXPERIMENT_TAGS)
                experiment = self.client.get_experiment_by_name(name)
            if experiment is None:
                raise MlflowException(_NOT_MLFLOW)
            if experiment.lifecycle_stage == "deleted":
                self.client.restore_experiment(experiment.experiment_id)
            self._experiments[name] = experiment.experiment_id
        return self._experiments[name]


@contextmanager
def _refusal_logged(subject: str) -> Iterator[None]:
    try:
        yield
    except MlflowException as error:
        if not is_refusal(error):
            raise
        log.warning("MLflow refuses %s: %s", subject, error)


@contextmanager
def _unless_it_exists() -> Iterator[None]:
    try:
        yield
    except RestException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _refusal(message: str) -> MlflowException:
    return MlflowException.invalid_parameter_value(message)


def _run(run: mlflow.entities.Run) -> Run:
    info = run.info
    if not info.run_id:
        raise MlflowException(_NOT_MLFLOW)
    return Run(info.run_id, info.experiment_id, info.artifact_uri)
