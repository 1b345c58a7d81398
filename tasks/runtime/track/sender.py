"""Drains outboxes to an MLflow server so that sending twice leaves the same run.

Whatever is interrupted is simply sent again. The server drops a metric that it already holds with
equal key, step, timestamp and value, and timestamps are those of the outbox; a run is tagged with
its outbox's name and looked up by it before another is created, a model by where it lies; params,
tags, artifacts and the final status overwrite themselves. Steps that a reopened run holds are left
out, because a resumed stage measures them again at another time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.runtime.track import mlflow_api, outbox
from tasks.runtime.track.mlflow_api import (
    Batch,
    MlflowApi,
    MlflowRejectedError,
    MlflowUnreachableError,
    Run,
)
from tasks.runtime.track.outbox import Operation, Outbox, Sent

log = logging.getLogger(__name__)

OUTBOX_TAG = "dynolab.outbox"
STAGE_KEY_TAG = "stage_key"
PARENT_TAG = "mlflow.parentRunId"
OPERATIONS_PER_READ = 1000


class RunGoneError(Exception):
    """The run that an outbox belongs to is deleted or unknown on the server."""


class Sender:
    """Sends all outboxes of a folder that no other process holds. Used by one thread at a time."""

    def __init__(self, api: MlflowApi, folder: Path) -> None:
        self.api, self.folder = api, folder
        self.boxes: dict[str, Outbox] = {}
        self.reachable = True
        self._held_steps: dict[str, dict[str, set[int]]] = {}  # of reopened runs: run id, metric
        self._experiments: dict[str, str] = {}

    def adopt(self) -> None:
        """Take over queues whose process has died."""
        for path in sorted(self.folder.glob("*.jsonl")):
            if path.stem not in self.boxes and (box := Outbox.adopt(path)):
                self.boxes[path.stem] = box

    def pending(self) -> int:
        """Operations in this process's queues that have not been sent."""
        return sum(box.pending for box in list(self.boxes.values()))

    def round(self) -> bool:
        """Send what can be sent, oldest queue first; returns whether the server was usable."""
        usable = True
        for box in sorted([*self.boxes.values()], key=lambda box: box.id):
            try:
                self._drain(box)
            except MlflowUnreachableError as error:
                usable = False
                self._report(error)
                if not error.answered:
                    return False  # nothing listens: the other queues would only wait as well
            except (MlflowRejectedError, RunGoneError) as error:
                log.warning("MLflow refuses %s for good, which is set aside: %s", box.path, error)
                del self.boxes[box.id]
                box.set_aside()
            except Exception:  # one queue's trouble must stop neither the others nor training
                usable = False
                log.exception("%s could not be sent; it is tried again", box.path)
        if usable and not self.reachable:
            log.info("MLflow at %s is back", self.api.uri)
        self.reachable = usable
        return usable

    def _report(self, error: MlflowUnreachableError) -> None:
        level = logging.WARNING if self.reachable else logging.DEBUG  # once for each outage
        log.log(level, "MLflow cannot be used, so tracking waits in the outbox: %s", error)
        self.reachable = False

    def _drain(self, box: Outbox) -> None:
        if box.sent.run is None and not self._open_run(box):
            return
        finished = False
        while operations := box.unsent(OPERATIONS_PER_READ):
            finished = self._send(box, operations) or finished
        # Nothing can follow the final status, nor what a dead process has written.
        if finished or not box.live:
            if not finished:
                self._end_of_dead(box)
            self._held_steps.pop(_run(box).run_id, None)
            del self.boxes[box.id]
            box.remove()

    def _end_of_dead(self, box: Outbox) -> None:
        """A run whose process was killed before it could end it does not look as if it went on."""
        run_id = _run(box).run_id
        if self.api.status(run_id) == "RUNNING":
            self.api.set_status(run_id, "KILLED", box.last_written_ms)

    def _send(self, box: Outbox, operations: list[tuple[Operation, int]]) -> bool:
        """Send operations in their order; returns whether the final status was among them."""
        batch, count, finished = Batch(), 0, False
        for operation, offset in operations:
            kind = operation.get("op")
            count += 1
            if kind in ("metrics", "params", "tags"):
                self._collect(box, operation, batch)
                if len(batch) < mlflow_api.ENTITIES_PER_BATCH:
                    continue
            self._log(box, batch)
            if kind == "artifact":
                self._upload(box, operation)
            elif kind == "model":
                self._register(box, operation)
            elif kind == "finish":
                run_id = _run(box).run_id
                self.api.set_status(run_id, operation["status"], operation["time"])
                finished = True
            box.mark(replace(box.sent, offset=offset), count)
            if kind == "artifact":
                box.artifact(operation["file"]).unlink(missing_ok=True)
            batch, count = Batch(), 0
        if count:
            self._log(box, batch)
            box.mark(replace(box.sent, offset=operations[-1][1]), count)
        return finished

    def _collect(self, box: Outbox, operation: Operation, batch: Batch) -> None:
        values: dict[str, Any] = operation["values"]
        if operation["op"] == "metrics":
            step, time_ms = operation["step"], operation["time"]
            batch.metrics += [
                (key, value, time_ms, step)
                for key, value in values.items()
                if not (box.sent.may_hold_steps and step in self._steps(_run(box).run_id, key))
            ]
        else:
            (batch.params if operation["op"] == "params" else batch.tags).update(values)

    def _steps(self, run_id: str, key: str) -> set[int]:
        held = self._held_steps.setdefault(run_id, {})
        if key not in held:
            held[key] = self.api.held_steps(run_id, key)
        return held[key]

    def _log(self, box: Outbox, batch: Batch) -> None:
        for part in within_limits(batch):
            self._log_or_halve(_run(box).run_id, part)

    def _log_or_halve(self, run_id: str, batch: Batch) -> None:
        """Log a batch; if it is refused, find the entities at fault and leave out those alone."""
        try:
            self.api.log_batch(run_id, batch)
        except MlflowRejectedError as error:
            if len(batch) == 1:
                if not self.api.is_active(run_id):
                    raise RunGoneError(f"run {run_id} is deleted or unknown") from error
                log.warning("MLflow refuses one value of run %s: %s", run_id, error)
                return
            for half in _halves(batch):
                self._log_or_halve(run_id, half)

    def _upload(self, box: Outbox, operation: Operation) -> None:
        file = box.artifact(operation["file"])
        folder, name = operation["folder"].strip("/"), operation["name"]
        try:
            self.api.upload(_run(box), file, f"{folder}/{name}" if folder else name)
        except FileNotFoundError:
            log.info("%s had been sent before", file)
        except MlflowRejectedError as error:
            log.warning("MLflow refuses the artifact %s: %s", operation["name"], error)

    def _register(self, box: Outbox, operation: Operation) -> None:
        name, source = operation["name"], operation["source"]
        run_id = operation["run_id"] or _run(box).run_id
        try:
            self.api.register_model(name, source, run_id, operation["tags"])
        except MlflowRejectedError as error:
            log.warning("MLflow refuses the model %s at %s: %s", name, source, error)

    def _open_run(self, box: Outbox) -> bool:
        """Find or create the run; False where another process must first send what precedes it."""
        first, offset = box.unsent(1)[0]
        if first.get("op") != "create":
            raise RunGoneError("the queue does not begin with the run's creation")
        resume_key = first["resume_key"]
        if resume_key and self._forerunner_waits(box, resume_key):
            return False
        experiment = self._experiment(first["experiment"])
        tags = dict(first["tags"]) | {OUTBOX_TAG: box.id}
        run = self.api.find_run(experiment, OUTBOX_TAG, box.id)
        reopened = run is not None
        if run is None and resume_key:
            run = self.api.find_run(experiment, STAGE_KEY_TAG, resume_key, unfinished=True)
            reopened = run is not None
        parent_known, parent = self._parent(experiment, first)
        if not parent_known:
            return False
        if parent:
            tags[PARENT_TAG] = parent
        if run is None:
            run = self.api.create_run(experiment, first["name"], first["time"], tags)
        else:
            self.api.set_status(run.run_id, "RUNNING")
            self._log_or_halve(run.run_id, Batch(tags=tags))
        box.mark(Sent(offset, run, may_hold_steps=reopened), 1)
        return True

    def _forerunner_waits(self, box: Outbox, resume_key: str) -> bool:
        """Whether an older queue of the same stage, held by another process, is still to be sent.

        Created out of order, the two would become two runs of one stage.
        """
        return any(
            path.stem < box.id
            and path.stem not in self.boxes
            and outbox.first_operation(path).get("resume_key") == resume_key
            for path in self.folder.glob("*.jsonl")
        )

    def _parent(self, experiment: str, first: Operation) -> tuple[bool, str | None]:
        """(Known, run id) of the parent run; not known while its queue has not created it."""
        if first["parent_run"] or not first["parent_outbox"]:
            return True, first["parent_run"]
        path = self.folder / f"{first['parent_outbox']}.jsonl"
        run = outbox.sent_run(path)
        if run is None and path.exists():
            return False, None
        run = run or self.api.find_run(experiment, OUTBOX_TAG, first["parent_outbox"])
        return True, run.run_id if run else None

    def _experiment(self, name: str) -> str:
        if name not in self._experiments:
            self._experiments[name] = self.api.experiment(name)
        return self._experiments[name]


def within_limits(batch: Batch) -> Iterator[Batch]:
    """Parts of a batch, each small enough for one request, in order."""
    part, size = Batch(), 0
    for entity in _entities(batch):
        length = _request_bytes(entity)
        if (
            len(part) == mlflow_api.ENTITIES_PER_BATCH
            or len(part.params) + len(entity.params) > mlflow_api.PARAMS_PER_BATCH
            or len(part.tags) + len(entity.tags) > mlflow_api.TAGS_PER_BATCH
            or size + length > mlflow_api.BATCH_BYTES
        ):
            yield part
            part, size = Batch(), 0
        _add(part, entity)
        size += length
    if len(part):
        yield part


def _entities(batch: Batch) -> list[Batch]:
    return [
        *(Batch(metrics=[metric]) for metric in batch.metrics),
        *(Batch(params={key: value}) for key, value in batch.params.items()),
        *(Batch(tags={key: value}) for key, value in batch.tags.items()),
    ]


def _add(batch: Batch, other: Batch) -> None:
    batch.metrics += other.metrics
    batch.params |= other.params
    batch.tags |= other.tags


def _halves(batch: Batch) -> tuple[Batch, Batch]:
    entities = _entities(batch)
    halves = (Batch(), Batch())
    for position, entity in enumerate(entities):
        _add(halves[2 * position >= len(entities)], entity)
    return halves


def _request_bytes(entity: Batch) -> int:
    field_names = 80
    texts = [metric[0] + "0" * 60 for metric in entity.metrics]  # 60: value, timestamp, step
    texts += [text for pair in (entity.params | entity.tags).items() for text in pair]
    return field_names + sum(len(json.dumps(text, ensure_ascii=False).encode()) for text in texts)


def _run(box: Outbox) -> Run:
    assert box.sent.run is not None  # _drain opens the run first
    return box.sent.run
