"""Real servers: MLflow as a process that tests may kill and restart, and Prefect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.runtime.servers.service import MLFLOW, is_healthy
from tasks.runtime.system.processes import free_port
from tasks.runtime.track.tracking import Tracking
from tests.flows.lab import until

START_SECONDS = 120


class MlflowServer:
    """One server; port, database and artifacts outlive its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and wait until it is healthy."""
        environment = os.environ | {
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "DO_NOT_TRACK": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"),
            *("--port", str(self.port), "--workers", "1"),
            *("--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db"),
            *("--artifacts-destination", str(self.folder / "artifacts")),
        ]
        with (self.folder / "server.log").open("ab") as output:
            self.process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        until(self._is_healthy, START_SECONDS)

    def _is_healthy(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
        return is_healthy(MLFLOW, self.uri)

    def kill(self) -> None:
        """SIGKILL the server and its workers."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture
def unstarted_mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def client(mlflow_server: MlflowServer) -> Any:
    """MLflow's own client, which reads what tests have sent."""
    from mlflow import MlflowClient

    return MlflowClient(mlflow_server.uri)


@pytest.fixture
def tracking(mlflow_server: MlflowServer, tmp_path: Path) -> Iterator[Tracking]:
    tracking = Tracking(mlflow_server.uri, tmp_path / "outbox", "tests")
    yield tracking
    tracking.close(timeout=0)


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """Prefect's temporary server; only one may live at a time."""
    from prefect.events.worker import EventsWorker
    from prefect.testing.utilities import prefect_test_harness

    EventsWorker.drain_all()  # it would go on sending to the server of an earlier test
    with prefect_test_harness(server_startup_timeout=START_SECONDS):
        yield
