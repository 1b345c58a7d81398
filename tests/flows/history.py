"""What an MLflow server has of a project."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen


@dataclass(frozen=True)
class History:
    """One run: its id, status, and the steps of every metric as often as they are there."""

    run_id: str
    status: str
    steps: Mapping[str, list[int]]


def histories(uri: str, project: str, name: str) -> list[History]:
    """All runs of that name in the project."""
    found = _call(uri, "experiments/get-by-name", {"experiment_name": project})
    body = {
        "experiment_ids": [found["experiment"]["experiment_id"]],
        "filter": f"attributes.run_name = '{name}'",
    }
    return [
        _history(uri, run) for run in _call(uri, "runs/search", body, post=True).get("runs", [])
    ]


def _history(uri: str, run: Mapping[str, Any]) -> History:
    run_id, steps = run["info"]["run_id"], {}
    for metric in run["data"].get("metrics", []):
        query = {"run_id": run_id, "metric_key": metric["key"], "max_results": 1000}
        values = _call(uri, "metrics/get-history", query)["metrics"]
        steps[metric["key"]] = sorted(int(value.get("step", 0)) for value in values)
    return History(run_id, run["info"]["status"], steps)


def _call(uri: str, path: str, values: Mapping[str, Any], *, post: bool = False) -> Any:
    url = f"{uri}/api/2.0/mlflow/{path}"
    if not post:
        url += "?" + urlencode(values)
    data = json.dumps(values).encode() if post else None
    with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=30) as answer:
        return json.load(answer)
