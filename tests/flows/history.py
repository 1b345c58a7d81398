"""What an MLflow server has of a project."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
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


TRAINED, PROBED = list(range(1, 13)), [0, 6, 12]


def finished_history(uri: str, project: str) -> History:
    """The one MLflow run of preference training; it has ended well."""
    (history,) = histories(uri, project, "preference")
    assert history.status == "FINISHED"
    return history


def lost(history: History) -> int:
    """Of a whole preference training's metrics the steps that are not there exactly once."""
    steps = history.steps
    trained = {name for name in steps if name.startswith("train/")}
    probed = {name for name in steps if name.startswith("probe/")}
    assert {"train/loss", "train/grad_norm"} <= trained and probed
    expected = {name: dict.fromkeys(found, 1) for name, found in steps.items()}
    expected |= {name: dict.fromkeys(TRAINED, 1) for name in trained}
    expected |= {name: dict.fromkeys(PROBED, 1) for name in probed}
    wrong = 0
    for name, wanted in expected.items():
        found = Counter(steps[name])
        wrong += (found - Counter(wanted)).total() + (Counter(wanted) - found).total()
    return wrong


def histories(uri: str, project: str, name: str) -> list[History]:
    """All runs of that name in the project; the address may hold a login."""
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
