"""The whole platform as `make up` starts it, on free ports and in a home of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from flows.deploy import PARAMETER, deployments
from tests.flows.lab import ROOT, Lab, until

START_SECONDS = 240.0
RUN_SECONDS = 300.0
ENDS = ("Completed", "Failed", "Crashed", "Cancelled")


class Platform:
    """A running `dynolab up`."""

    def __init__(self, lab: Lab, process: subprocess.Popen[str], said: list[str]) -> None:
        self.lab, self.process, self.said = lab, process, said

    @property
    def prefect(self) -> str:
        return self.link("Prefect").partition("/?token=")[0]

    @property
    def mlflow(self) -> str:
        return self.link("MLflow").partition("/?token=")[0]

    def link(self, name: str) -> str:
        """What is opened in a browser to log in at a server."""
        return next(line.split()[1] for line in self.said if line.startswith(name))

    @property
    def login(self) -> dict[str, str]:
        """The header that logs in."""
        return {"Authorization": f"Bearer {self.link('Prefect').partition('/?token=')[2]}"}

    def ask(self, path: str, **body: Any) -> Any:
        """Prefect's answer; asks again where the server is too busy (503), as its client does."""
        again = Retry(5, status_forcelist=[503], allowed_methods=None, backoff_factor=0.5)
        with requests.Session() as session:
            session.mount("http://", HTTPAdapter(max_retries=again))
            session.headers.update(self.login)
            answer = session.post(f"{self.prefect}/api/{path}", json=body, timeout=30)
        assert answer.ok, answer.text
        return answer.json()

    def read(self, path: str) -> dict[str, Any]:
        """One thing that Prefect has."""
        answer = requests.get(f"{self.prefect}/api/{path}", headers=self.login, timeout=30)
        return dict(answer.json())

    def start(self, deployment: str, /, **settings: Any) -> str:
        """A run of a deployment, from its form: its id."""
        form = deployments()[deployment.partition("/")[2]].form_model
        filled = form(**{"study_file": "builtin.yaml", **settings}).model_dump(
            mode="json", exclude_none=True
        )
        known = self.read(f"deployments/name/{deployment}")
        parameters = {PARAMETER: filled}
        run = self.ask(f"deployments/{known['id']}/create_flow_run", parameters=parameters)
        return str(run["id"])

    def state(self, run: str) -> str:
        """Name of a flow run's state now."""
        return str(self.read(f"flow_runs/{run}")["state"]["name"])

    def end_of(self, run: str) -> str | None:
        """Name of the state that a flow run has come to; None while it runs."""
        now = self.state(run)
        return now if now in ENDS else None

    def awaited_end(self, run: str, seconds: float = RUN_SECONDS) -> str:
        """Name of the state that a flow run comes to."""
        return str(until(lambda: self.end_of(run), seconds))

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def platform_of(lab: Lab, *options: str) -> Iterator[Platform]:
    log = lab.folder / "up.log"
    command = [
        sys.executable,
        "-u",
        "-m",
        "flows.cli",
        "up",
        "--prefect-port",
        "0",
        "--mlflow-port",
        "0",
        *options,
    ]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=lab.environment,
            text=True,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    try:
        while not any(line.startswith("flows") for line in log.read_text().splitlines()):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)
        yield Platform(lab, process, log.read_text().splitlines())
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    lab = Lab(tmp_path_factory.mktemp("platform"))
    with platform_of(lab) as running:
        yield running


def result_folder(name: str) -> Path:
    """Where a test keeps what is to be looked at."""
    folder = ROOT / ".dynolab" / "screenshots" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
