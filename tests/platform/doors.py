"""The ways into running servers for whoever has no login.

A way is open where something comes back or changes; what is told of it says what.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from tasks.runtime.system.secret_files import new_session, proof

Found = dict[str, str | None]
"""Way → what it got; None where it is closed."""

EVIL = "http://evil.example"
CALLED = "/_dash-update-component"
CALL = {
    "output": "address.search",
    "outputs": {"id": "address", "property": "search"},
    "inputs": [{"id": "step", "property": "value", "value": None}],
    "changedPropIds": ["step.value"],
    "state": [{"id": "address", "property": "search", "value": ""}],
}
"""What the explorer's page asks its server when the step is chosen."""

WEBSOCKET = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Protocol": "prefect",
}


@dataclass(frozen=True)
class Owner:
    """The servers' owner: their addresses, the home's token, and the processes."""

    prefect: str
    mlflow: str
    explorer: str
    token: str
    processes: Sequence[int]

    @property
    def cookie(self) -> str:
        """Name of the login's cookie."""
        return f"dynolab-{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"

    @property
    def artifact(self) -> str:
        """Address of a file among MLflow's artifacts."""
        return f"{self.mlflow}/api/2.0/mlflow-artifacts/artifacts/0/doors/artifacts/kept.txt"

    def ask(self, method: str, url: str, **more: Any) -> requests.Response:
        login = {"Authorization": f"Bearer {self.token}"}
        return requests.request(method, url, headers=login, timeout=60, **more)

    def start_address(self) -> str:
        """Where a run of a deployment is started; the deployment is made if there is none."""
        listed = self.ask("POST", f"{self.prefect}/api/deployments/filter", json={}).json()
        if not listed:
            flow = self.ask("POST", f"{self.prefect}/api/flows/", json={"name": "doors"}).json()
            made = {"name": "doors", "flow_id": flow["id"]}
            listed = [self.ask("POST", f"{self.prefect}/api/deployments/", json=made).json()]
        return f"{self.prefect}/api/deployments/{listed[0]['id']}/create_flow_run"

    def state(self) -> dict[str, object]:
        """What others would change: counts of what there is, and a file's content."""
        by_the_clock = {"flow_runs": {"tags": {"all_": ["auto-scheduled"]}}}
        flow_runs, scheduled, flows = (
            self.ask("POST", f"{self.prefect}/api/{kind}/count", json=chosen).json()
            for kind, chosen in (("flow_runs", {}), ("flow_runs", by_the_clock), ("flows", {}))
        )
        asked = {"experiment_ids": ["0"]}
        runs = self.ask("POST", f"{self.mlflow}/api/2.0/mlflow/runs/search", json=asked).json()
        kept = self.ask("GET", self.artifact).text
        started = flow_runs - scheduled
        return {"flow runs": started, "flows": flows, "MLflow runs": runs, "artifact": kept}


def tried_without_login(owner: Owner) -> Found:
    """What a program without a login, or with a wrong one, gets from each server."""
    prefect, mlflow, explorer = owner.prefect, owner.mlflow, owner.explorer
    run = {"experiment_id": "0", "start_time": 0}
    asked: list[tuple[str, str, Any]] = [
        ("POST", owner.start_address(), {"job_variables": {"command": "id"}}),
        ("POST", f"{prefect}/api/deployments/filter", {}),
        ("POST", f"{prefect}/api/admin/database/clear", {"confirm": True}),
        ("GET", f"{prefect}/api/admin/settings", None),
        ("GET", f"{prefect}/ui-settings", None),
        ("GET", f"{mlflow}/api/2.0/mlflow/experiments/search?max_results=9", None),
        ("POST", f"{mlflow}/api/2.0/mlflow/runs/create", run),
        ("POST", f"{mlflow}/ajax-api/2.0/mlflow/runs/create", run),
        ("POST", f"{mlflow}/graphql", {"query": "{ __typename }", "operationName": None}),
        ("GET", owner.artifact, None),
        ("PUT", owner.artifact, "changed"),
        ("DELETE", owner.artifact, None),
        ("GET", f"{explorer}/", None),
        ("POST", explorer + CALLED, CALL),
    ]
    found: Found = {}
    logins = {"no login": {}, "another token": {"Authorization": f"Bearer {'0' * 64}"}}
    logins |= {
        name: {"Cookie": f"{owner.cookie}={session}"}
        for name, session in sessions_of_others(owner.token).items()
    }
    for name, login in logins.items():
        for method, url, body in asked:
            answer = requests.request(method, url, json=body, headers=login, timeout=60)
            found[f"{method} {url}, {name}"] = answer.text if answer.ok else None
    for path in ("/api/events/in", "/api/events/out", "/api/logs/out"):
        answer = requests.get(prefect + path, headers=WEBSOCKET, timeout=60)
        found[f"WebSocket {path}"] = "accepted" if answer.status_code == 101 else None
    for process in owner.processes:
        words = Path(f"/proc/{process}/cmdline").read_text()
        found[f"arguments of process {process}"] = words if owner.token in words else None
    return found


def sessions_of_others(token: str) -> dict[str, str]:
    """Cookies that log nobody in: what it is → its value."""
    opened, _, signature = new_session(token, 3600).rpartition(".")
    end, salt = opened.split(".")
    return {
        "the token as a cookie": token,
        "a session that has ended": new_session(token, -1),
        "a session made longer": f"{int(end) + 10**6}.{salt}.{signature}",
        "a session of another token": new_session("0" * 64, 3600),
        "an answer to a client's question": f"{opened}.{proof(token, 'server', opened)}",
    }


def open_ways(found: Found) -> dict[str, str]:
    """The ways that are open."""
    return {name: got for name, got in found.items() if got is not None}
