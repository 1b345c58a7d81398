"""The whole platform as `make up` starts it, on free ports and in a home of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks.runtime.system.secret_files import own_folder
from tests.flows.lab import ROOT, Lab
from tests.platform.served import Served

START_SECONDS = 240.0


class Platform(Served):
    """A running `dynolab up`."""

    def __init__(self, lab: Lab, process: subprocess.Popen[str], said: list[str]) -> None:
        self.lab, self.process, self.said = lab, process, said

    def link(self, name: str) -> str:
        """What is opened in a browser to log in at a server."""
        return next(line.split()[1] for line in self.said if line.startswith(name))

    @property
    def prefect(self) -> str:
        return self.link("Prefect").partition("/v2/")[0] + "/api"

    @property
    def mlflow(self) -> str:
        return self.link("MLflow").partition("/?token=")[0]

    @property
    def login(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.link('Prefect').partition('?token=')[2]}"}

    def stop(self, number: int = signal.SIGINT) -> int:
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
    folder = own_folder(ROOT / ".dynolab") / "screenshots" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
