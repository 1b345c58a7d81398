"""Sends runs to an MLflow server; sending twice gives the same run.

After an interruption a run is sent again from its beginning. The server drops a metric that it has
with the same key, step, timestamp and value. Before a run is created, the sender looks for one
tagged with the folder's name, and before a model version, for one with the same source. Params,
tags, artifacts and the final status overwrite themselves. Steps that a reopened run already has are
skipped, because a resumed stage logs them again with new timestamps.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mlflow.entities
import requests
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException, RestException
from mlflow.utils.rest_utils import verify_rest_response

from dynolab.results.study import MetricsLine
from tasks.runtime.track.mlflow_pages import (
    DESCRIPTION_TAG,
    EXPERIMENT_TAGS,
    FAILED,
    arms_of,
    charts_of,
    description,
    run_page,
)
from tasks.runtime.track.runs import (
    OUTBOX_TAG,
    PARENT_TAG,
    Run,
    RunTracker,
    now_ms,
    set_aside,
)

log = logging.getLogger(__name__)

LINES_PER_BATCH = 500
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
    """Sends `runs` (folder name → run), whose folders are in `outbox`. Not thread-safe."""

    def __init__(self, client: MlflowClient, outbox: Path, runs: dict[str, RunTracker]) -> None:
        self.client, self.outbox, self.runs = client, outbox, runs
        self.reachable = True
        self._steps_before: dict[tuple[str, str], set[int]] = {}  # reopened run and metric → steps
        self._experiments: dict[str, str] = {}

    def send_all(self) -> bool:
        """Send all runs, oldest first; returns whether the server was usable."""
        usable = True
        for name in sorted(self.runs):
            tracker = self.runs[name]
            try:
                self._send(tracker)
            except MlflowException as error:
                if is_refusal(error):
                    log.warning("MLflow refuses %s; setting it aside: %s", tracker.folder, error)
                    set_aside(tracker.folder)
                    tracker.release()
                    del self.runs[name]
                    continue
                usable = False
                level = logging.WARNING if self.reachable else logging.DEBUG  # once per outage
                log.log(level, "MLflow cannot be used; tracking waits in the outbox: %s", error)
                self.reachable = False
            except Exception:  # one run's error must stop neither the others nor training
                usable = False
                log.exception("%s could not be sent; trying again later", tracker.folder)
        if usable and not self.reachable:
            log.info("MLflow at %s is back", self.client.tracking_uri)
        self.reachable = usable
        return usable

    def _send(self, tracker: RunTracker) -> None:
        # Read before all else: what is sent below then holds all that was logged before the status,
        # after which nothing is logged.
        status = tracker.record.status or (None if tracker.live else "KILLED")
        run = tracker.run or self._open_run(tracker)
        if run is None:
            return
        version = tracker.version  # it may rise while the record is sent; then it is sent again
        if version > tracker.sent_version:
            self._send_record(tracker, run)
            tracker.sent_version = version
        for tail in tracker.tails():
            for lines in tail.batches(LINES_PER_BATCH):
                self._log_batch(run.run_id, list(self._metrics(tracker, run.run_id, lines)))
        for file in tracker.artifacts():
            inode = file.stat().st_ino  # `log_artifact` may put a newer file in its place
            self._upload(run, file, file.parent.relative_to(tracker.folder / "artifacts"))
            with tracker.writing:
                if file.stat().st_ino == inode:
                    file.unlink()
        if status is not None:
            self.client.set_terminated(run.run_id, status, tracker.record.ended or now_ms())
            # Renamed first: a folder that is half deleted is nobody's run.
            gone = tracker.folder.rename(self.outbox / f"sent-{tracker.folder.name}")
            tracker.release()
            shutil.rmtree(gone)
            del self.runs[tracker.folder.name]  # last: `send_pending` returns when it is gone

    def _send_record(self, tracker: RunTracker, run: Run) -> None:
        with tracker.writing:
            record = tracker.record
            params = [Param(*pair) for pair in record.params.items()]
            tags = [RunTag(*pair) for pair in record.tags.items()]
            trainings, page, models = record.trainings, record.page, list(record.models)
            arms, arms_metrics = record.arms, record.arms_metrics
            error = record.error
        self._log_batch(run.run_id, [*params, *tags])
        if trainings is not None or page is not None or error:
            with _refusal_logged(f"the description of run {run.run_id}"):
                if trainings is not None:
                    self.client.set_experiment_tag(run.experiment_id, *charts_of(run, trainings))
                if arms:
                    table = arms_of(run, arms, arms_metrics)
                    self.client.set_experiment_tag(run.experiment_id, *table)
                page_address = page and run_page(Run(page[0], run.experiment_id, ""), page[1])
                text = description(
                    run, error, charts=trainings is not None, arms=bool(arms), page=page_address
                )
                user_text = record.tags.get(DESCRIPTION_TAG, "")
                self.client.set_tag(run.run_id, DESCRIPTION_TAG, f"{user_text} {text}".strip())
        elif record.reopened and record.status == "FINISHED":
            self._forget_failure(run)
        for model in models:
            self._register_model(
                model["run_id"] or run.run_id, model["name"], model["source"], model["tags"]
            )

    def _forget_failure(self, run: Run) -> None:
        """Takes the reason of an earlier attempt's failure out of a run's description."""
        note = self.client.get_run(run.run_id).data.tags.get(DESCRIPTION_TAG, "")
        if FAILED in note:
            self.client.set_tag(run.run_id, DESCRIPTION_TAG, note.partition(FAILED)[0].strip())

    def _metrics(
        self, tracker: RunTracker, run_id: str, lines: Iterable[MetricsLine]
    ) -> Iterator[Metric]:
        for line in lines:
            for key, value in line.metrics.items():
                if not (tracker.record.reopened and line.step in self._steps(run_id, key)):
                    yield Metric(key, value, int(line.time * 1000), line.step)

    def _steps(self, run_id: str, key: str) -> set[int]:
        """Steps at which a run had a value of the metric when it was reopened."""
        if (run_id, key) not in self._steps_before:
            history = self.client.get_metric_history(run_id, key)
            self._steps_before[run_id, key] = {metric.step for metric in history}
        return self._steps_before[run_id, key]

    def _log_batch(self, run_id: str, batch: Sequence[Entity]) -> None:
        """Log a batch; halve one that is refused, so that only the faulty values are dropped."""
        metrics = [entity for entity in batch if isinstance(entity, Metric)]
        params = [entity for entity in batch if isinstance(entity, Param)]
        tags = [entity for entity in batch if isinstance(entity, RunTag)]
        try:
            self.client.log_batch(run_id, metrics, params, tags)
        except MlflowException as error:
            if not is_refusal(error):
                raise
            if self.client.get_run(run_id).info.lifecycle_stage != "active":
                raise MlflowException.invalid_parameter_value(f"{run_id} is deleted") from error
            if len(batch) == 1:
                log.warning("MLflow refuses one value of run %s: %s", run_id, error)
                return
            self._log_batch(run_id, batch[: len(batch) // 2])
            self._log_batch(run_id, batch[len(batch) // 2 :])

    def _upload(self, run: Run, file: Path, folder: Path) -> None:
        if urlsplit(run.artifact_uri).scheme != "mlflow-artifacts":
            log.warning("skipping %s: MLflow does not serve artifacts (--serve-artifacts)", file)
            return
        with _refusal_logged(f"the artifact {file.name}"):
            try:
                self.client.log_artifact(
                    run.run_id, str(file), folder.as_posix().strip(".")
                )  # ".": none
            except requests.HTTPError as error:
                verify_rest_response(error.response, "artifacts")  # raises MlflowException

    def _register_model(self, run_id: str, name: str, source: str, tags: dict[str, Any]) -> None:
        """Create a version of the registered model, unless one already has this source."""
        with _refusal_logged(f"the model {name} at {source}"):
            with _unless_it_exists():
                self.client.create_registered_model(name)
            condition = f"name = '{name}' and source_path = '{source}'"
            if not self.client.search_model_versions(condition):
                self.client.create_model_version(name, source, run_id, tags, await_creation_for=0)

    def _open_run(self, tracker: RunTracker) -> Run | None:
        """Find or create the run; None if another process must first send its parent."""
        record, name = tracker.record, tracker.folder.name
        experiment = self._experiment(record.experiment)
        if record.parent:
            parent = self._find_run(experiment, f"tags.`{OUTBOX_TAG}` = '{record.parent}'")
            if parent:
                record.tags[PARENT_TAG] = parent.run_id
            elif (self.outbox / record.parent).exists():
                return None
        # This folder's run, which a sender created before it ended; else the one that an earlier
        # attempt left; else a new one.
        run = self._find_run(experiment, f"tags.`{OUTBOX_TAG}` = '{name}'")
        if run is None and record.resume_by:
            same_tag = f"tags.`{record.resume_by}` = '{record.tags[record.resume_by]}'"
            run = self._find_run(experiment, f"{same_tag} and attributes.status != 'FINISHED'")
            record.reopened = run is not None
        record.tags[OUTBOX_TAG] = name
        if run is None:
            run = _run(
                self.client.create_run(experiment, record.began, record.tags, run_name=record.name)
            )
        else:
            self.client.update_run(run.run_id, "RUNNING")
        with tracker.writing:
            record.run = run
            tracker.save()
        tracker.created.set()
        return run

    def _find_run(self, experiment: str, condition: str) -> Run | None:
        """The newest run of the experiment that matches the condition."""
        newest_first = ["attributes.start_time DESC"]
        runs = self.client.search_runs(
            [experiment], condition, max_results=1, order_by=newest_first
        )
        return _run(runs[0]) if runs else None

    def _experiment(self, name: str) -> str:
        """Id of the experiment `name`; creates it, or restores it if it was deleted."""
        if name not in self._experiments:
            experiment = self.client.get_experiment_by_name(name)
            if experiment is None:
                with _unless_it_exists():  # another process may create it first
                    self.client.create_experiment(name, tags=EXPERIMENT_TAGS)
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


def _run(run: mlflow.entities.Run) -> Run:
    info = run.info
    if not info.run_id:
        raise MlflowException(_NOT_MLFLOW)
    return Run(info.run_id, info.experiment_id, info.artifact_uri)
