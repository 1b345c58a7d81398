"""The part of MLflow's REST API that tracking needs, on the standard library alone.

`import mlflow` costs more than four seconds, which a fully cached run would pay for nothing;
these few calls have been stable since MLflow 1 (https://mlflow.org/docs/latest/rest-api.html).
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import math
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynolab.errors import ConfigError

ENTITIES_PER_BATCH = 1000
PARAMS_PER_BATCH = 100
TAGS_PER_BATCH = 100
BATCH_BYTES = 900_000  # the server refuses requests over 1,000,000 bytes
# MLflow's pages then open on runs and their curves, not on traces of language model calls.
_TRAINING_EXPERIMENT = {"key": "mlflow.experimentKind", "value": "custom_model_development"}
PARAM_LENGTH = 6000
TAG_LENGTH = 8000
HISTORY_PAGE = 25_000
EXPERIMENTS_PER_SEARCH = 100

_RETRY_LATER = {401, 403, 408, 425, 429}  # wrong login and throttling are mended from outside


class MlflowUnreachableError(Exception):
    """The server cannot be used at the moment: refused, timed out, 5xx, not MLflow, bad login.

    `answered` is true where something answered, so that the trouble may be this request's alone.
    """

    def __init__(self, message: str, *, answered: bool) -> None:
        super().__init__(message)
        self.answered = answered


class MlflowRejectedError(Exception):
    """The server understood the request and refuses it for good (4xx with an error code)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


@dataclass(frozen=True)
class Run:
    """What tracking needs to know of a run on the server."""

    run_id: str
    experiment_id: str
    artifact_uri: str


@dataclass
class Batch:
    """Entities of one run for `log_batch`; `metrics` are (key, value, timestamp_ms, step)."""

    metrics: list[tuple[str, float, int, int]] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.metrics) + len(self.params) + len(self.tags)


class MlflowApi:
    """Client of one tracking server; each call is one HTTP request.

    Login is taken from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD of `environment`.
    Every call raises `MlflowUnreachableError` or `MlflowRejectedError`.
    """

    def __init__(
        self, uri: str, environment: Mapping[str, str] = os.environ, timeout: float = 10.0
    ) -> None:
        parts = urllib.parse.urlsplit(uri)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(
                "MLFLOW_TRACKING_URI", uri, "give the address of a server: http://host:port"
            )
        self.uri, self.timeout = uri.rstrip("/"), timeout
        self._headers: dict[str, str] = {}
        if user := environment.get("MLFLOW_TRACKING_USERNAME"):
            login = f"{user}:{environment.get('MLFLOW_TRACKING_PASSWORD', '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()

    def run_url(self, run: Run) -> str:
        """Address of the run's page in MLflow's UI."""
        place = f"experiments/{run.experiment_id}/runs/{run.run_id}"
        return f"{self.uri}/#/{place}?workflowType=machine_learning"  # not language model calls

    def experiment(self, name: str) -> str:
        """Id of the experiment called `name`; created, or restored if it was deleted."""
        try:
            query = urllib.parse.urlencode({"experiment_name": name})
            found = self._call("GET", f"experiments/get-by-name?{query}")["experiment"]
        except MlflowRejectedError as error:
            if error.code != "RESOURCE_DOES_NOT_EXIST":
                raise
        else:
            if found.get("lifecycle_stage") == "deleted":
                self._call("POST", "experiments/restore", {"experiment_id": found["experiment_id"]})
            return str(found["experiment_id"])
        try:
            request = {"name": name, "tags": [_TRAINING_EXPERIMENT]}
            return str(self._call("POST", "experiments/create", request)["experiment_id"])
        except MlflowRejectedError as error:
            if error.code != "RESOURCE_ALREADY_EXISTS":
                raise
            return self.experiment(name)  # another process was faster

    def create_run(
        self, experiment_id: str, name: str, start_ms: int, tags: Mapping[str, str]
    ) -> Run:
        """Create a run in state RUNNING."""
        body = {
            "experiment_id": experiment_id,
            "run_name": name,
            "start_time": start_ms,
            "tags": _key_values(tags),
        }
        return _run(self._call("POST", "runs/create", body)["run"])

    def find_run(
        self, experiment_id: str, tag: str, value: str, *, unfinished: bool = False
    ) -> Run | None:
        """Newest run that carries `tag` = `value`; with `unfinished` none in state FINISHED."""
        condition = f"tags.`{tag}` = '{value}'"
        if unfinished:
            condition += " and attributes.status != 'FINISHED'"
        body = {
            "experiment_ids": [experiment_id],
            "filter": condition,
            "order_by": ["attributes.start_time DESC"],
            "max_results": 1,
        }
        runs = self._call("POST", "runs/search", body).get("runs", [])
        return _run(runs[0]) if runs else None

    def running(self, tag: str) -> dict[str, dict[str, str]]:
        """Runs in state RUNNING that carry `tag`, of all experiments: id → tags."""
        found: dict[str, dict[str, str]] = {}
        condition = f"attributes.status = 'RUNNING' and tags.`{tag}` LIKE '%'"
        experiments = self._pages("experiments/search", "experiments", {})
        ids = [one["experiment_id"] for one in experiments]
        for first in range(0, len(ids), EXPERIMENTS_PER_SEARCH):
            body = {
                "experiment_ids": ids[first : first + EXPERIMENTS_PER_SEARCH],
                "filter": condition,
            }
            for run in self._pages("runs/search", "runs", body):
                tags = {one["key"]: one["value"] for one in run["data"].get("tags", [])}
                found[run["info"]["run_id"]] = tags
        return found

    def _pages(self, path: str, name: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            asked = {**body, "max_results": 1000, **({"page_token": token} if token else {})}
            page = self._call("POST", path, asked)
            yield from page.get(name, [])
            if not (token := page.get("next_page_token", "")):
                return

    def tags(self, run_id: str) -> dict[str, str]:
        """The tags of a run."""
        query = urllib.parse.urlencode({"run_id": run_id})
        data = self._call("GET", f"runs/get?{query}")["run"]["data"]
        return {tag["key"]: tag["value"] for tag in data.get("tags", [])}

    def register_model(self, name: str, source: str, run_id: str, tags: Mapping[str, str]) -> None:
        """A version of the registered model `name`, unless one has this source already."""
        try:
            self._call("POST", "registered-models/create", {"name": name})
        except MlflowRejectedError as error:
            if error.code != "RESOURCE_ALREADY_EXISTS":
                raise
        query = urllib.parse.urlencode({"filter": f"name = '{name}' and source_path = '{source}'"})
        if not self._call("GET", f"model-versions/search?{query}").get("model_versions"):
            body = {"name": name, "source": source, "run_id": run_id, "tags": _key_values(tags)}
            self._call("POST", "model-versions/create", body)

    def model_tags(self, name: str, version: str) -> dict[str, str]:
        """The tags of a version of a registered model."""
        query = urllib.parse.urlencode({"name": name, "version": version})
        found = self._call("GET", f"model-versions/get?{query}")["model_version"]
        return {tag["key"]: tag["value"] for tag in found.get("tags", [])}

    def held_steps(self, run_id: str, key: str) -> set[int]:
        """Steps at which the run already holds a value of the metric `key`."""
        steps: set[int] = set()
        query = {"run_id": run_id, "metric_key": key, "max_results": str(HISTORY_PAGE)}
        while True:
            page = self._call("GET", f"metrics/get-history?{urllib.parse.urlencode(query)}")
            steps.update(int(metric.get("step", 0)) for metric in page.get("metrics", []))
            if not page.get("next_page_token"):
                return steps
            query["page_token"] = page["next_page_token"]

    def log_batch(self, run_id: str, batch: Batch) -> None:
        """Log metrics, params and tags within the limits of one request."""
        metrics = [
            {"key": key, "value": _json_number(value), "timestamp": time_ms, "step": step}
            for key, value, time_ms, step in batch.metrics
        ]
        body = {
            "run_id": run_id,
            "metrics": metrics,
            "params": _key_values(batch.params),
            "tags": _key_values(batch.tags),
        }
        self._call("POST", "runs/log-batch", body)

    def is_active(self, run_id: str) -> bool:
        """Whether the run exists and is not deleted."""
        query = urllib.parse.urlencode({"run_id": run_id})
        try:
            answer = self._call("GET", f"runs/get?{query}")
        except MlflowRejectedError:
            return False
        return bool(answer["run"]["info"].get("lifecycle_stage", "active") == "active")

    def status(self, run_id: str) -> str:
        """The run's state, such as RUNNING or FINISHED."""
        query = urllib.parse.urlencode({"run_id": run_id})
        return str(self._call("GET", f"runs/get?{query}")["run"]["info"]["status"])

    def set_status(self, run_id: str, status: str, end_ms: int | None = None) -> None:
        """Set the run's state; `end_ms` is its end in milliseconds."""
        body: dict[str, Any] = {"run_id": run_id, "status": status}
        if end_ms is not None:
            body["end_time"] = end_ms
        self._call("POST", "runs/update", body)

    def upload(self, run: Run, file: Path, path: str) -> None:
        """Store `file` as the run's artifact `path` through the server's artifact proxy."""
        root = urllib.parse.urlsplit(run.artifact_uri)
        if root.scheme != "mlflow-artifacts":
            message = f"{run.artifact_uri} is not served by the server (--serve-artifacts)"
            raise MlflowRejectedError("ARTIFACTS_NOT_PROXIED", message)
        target = urllib.parse.quote(f"{root.path.strip('/')}/{path}")
        url = f"{self.uri}/api/2.0/mlflow-artifacts/artifacts/{target}"
        with file.open("rb") as stream:
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(file.stat().st_size),
            }
            # A large figure on a slow link is no outage: grant it longer than a small request.
            self._send("PUT", url, stream, headers, timeout=max(self.timeout, 120.0))

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        url = f"{self.uri}/api/2.0/mlflow/{path}"
        return self._send(method, url, data, {"Content-Type": "application/json"}, self.timeout)

    def _send(
        self, method: str, url: str, data: Any, headers: Mapping[str, str], timeout: float
    ) -> Any:
        request = urllib.request.Request(
            url, data=data, method=method, headers={**self._headers, **headers}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return json.loads(response.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise _typed(error) from error
        except (OSError, http.client.HTTPException) as error:
            raise MlflowUnreachableError(f"{self.uri}: {error}", answered=False) from error
        except ValueError as error:
            message = f"{self.uri} does not answer like MLflow: {error}"
            raise MlflowUnreachableError(message, answered=True) from error


def _typed(error: urllib.error.HTTPError) -> MlflowUnreachableError | MlflowRejectedError:
    """A refusal is final only where MLflow itself, not a proxy before it, has given a reason."""
    text, answer = "", None
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        text = error.read().decode(errors="replace")
        answer = json.loads(text)
    if (
        isinstance(answer, dict)
        and "error_code" in answer
        and 400 <= error.code < 500
        and error.code not in _RETRY_LATER
    ):
        return MlflowRejectedError(str(answer["error_code"]), str(answer.get("message", "")))
    return MlflowUnreachableError(f"{error.url}: HTTP {error.code}: {text[:200]}", answered=True)


def _key_values(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _json_number(value: float) -> float | str:
    """NaN and infinities as protobuf's JSON writes them; plain JSON has no such numbers."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _run(answer: Mapping[str, Any]) -> Run:
    info = answer["info"]
    return Run(info["run_id"], info["experiment_id"], info["artifact_uri"])
