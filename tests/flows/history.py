"""What an MLflow server has of a project."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen


@dataclass(frozen=True)
class History:
    """One run: its id, status, and (step, value) of every metric as often as they are there."""

    run_id: str
    status: str
    values: Mapping[str, list[tuple[int, float]]]


OWN = {"train/examples_per_s", "probe/seconds", "result/resumed_from", "result/seconds"}
"""Metrics whose values differ between two runs of one training."""


def finished_history(uri: str, project: str) -> History:
    """The one MLflow run of preference training; it has ended well."""
    (history,) = histories(uri, project, "preference")
    assert history.status == "FINISHED"
    return history


def lost(history: History, undisturbed: History, *, up_to: float = math.inf) -> list[str]:
    """Values that are missing, doubled, or not those of the undisturbed training.

    Of `OWN` metrics the steps alone are compared; steps beyond `up_to` are not.
    """
    kept, wanted = (Counter(_entries(run, up_to)) for run in (history, undisturbed))
    assert wanted
    missing = [f"{entry} is missing" for entry in (wanted - kept).elements()]
    return missing + [f"{entry} is surplus" for entry in (kept - wanted).elements()]


def _entries(history: History, up_to: float) -> Iterator[str]:
    """Values as text: NaN equals nothing."""
    for name, values in history.values.items():
        for step, value in values:
            if step <= up_to:
                yield f"{name} of step {step}" + ("" if name in OWN else f" = {value!r}")


def histories(uri: str, project: str, name: str) -> list[History]:
    """All runs whose name ends so in the project; the address may hold a login."""
    found = _call(uri, "experiments/get-by-name", {"experiment_name": project})
    body = {
        "experiment_ids": [found["experiment"]["experiment_id"]],
        "filter": f"attributes.run_name LIKE '%{name}'",
    }
    return [
        _history(uri, run) for run in _call(uri, "runs/search", body, post=True).get("runs", [])
    ]


def _history(uri: str, run: Mapping[str, Any]) -> History:
    run_id, values = run["info"]["run_id"], {}
    for metric in run["data"].get("metrics", []):
        query = {"run_id": run_id, "metric_key": metric["key"], "max_results": 1000}
        logged = _call(uri, "metrics/get-history", query)["metrics"]
        values[metric["key"]] = [(int(at.get("step", 0)), float(at["value"])) for at in logged]
    return History(run_id, run["info"]["status"], values)


def _call(uri: str, path: str, values: Mapping[str, Any], *, post: bool = False) -> Any:
    login, _, host = uri.removeprefix("http://").rpartition("@")
    url = f"http://{host}/api/2.0/mlflow/{path}"
    if not post:
        url += "?" + urlencode(values)
    data = json.dumps(values).encode() if post else None
    headers = {"Content-Type": "application/json"}
    if login:
        headers["Authorization"] = "Basic " + b64encode(login.encode()).decode()
    with urlopen(Request(url, data, headers), timeout=30) as answer:
        return json.load(answer)
