"""A running platform, for a client that is logged in at its Prefect server."""

from __future__ import annotations

from typing import Any

import requests

from tests.flows.lab import until

FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
RUN_SECONDS = 300.0


class Served:
    """Its `prefect` is the address of Prefect's API, `login` the header that logs in there."""

    prefect: str
    login: dict[str, str]

    def api(self, method: str, path: str, **body: Any) -> Any:
        """Asks Prefect, again where it is busy or just starts."""

        def asked() -> requests.Response | None:
            url = f"{self.prefect}/{path}"
            try:
                answer = requests.request(
                    method, url, json=body or None, headers=self.login, timeout=30
                )
            except requests.ConnectionError:
                return None
            return None if answer.status_code in (500, 503) else answer

        answer = until(asked, 60)
        assert answer.ok, answer.text
        return answer.json() if answer.content else None

    def start(self, deployment: str, **fields: Any) -> str:
        """A run of a deployment, from its form: its id."""
        one = self.api("GET", f"deployments/name/{deployment}")["id"]
        parameters = {"settings": {"study_file": "builtin.yaml", **fields}}
        run = self.api("POST", f"deployments/{one}/create_flow_run", parameters=parameters)
        return str(run["id"])

    def set_state(self, run: str, kind: str, name: str, **details: Any) -> None:
        """As the buttons of a run's page do."""
        state = {"type": kind, "name": name, "state_details": details}
        self.api("POST", f"flow_runs/{run}/set_state", state=state, force=True)

    def state(self, run: str) -> dict[str, Any]:
        return dict(self.api("GET", f"flow_runs/{run}")["state"])

    def end(self, run: str, seconds: float = RUN_SECONDS) -> str:
        """The name of the state in which the run ends, which is awaited."""
        until(lambda: self.state(run)["type"] in FINAL, seconds)
        return str(self.state(run)["name"])
