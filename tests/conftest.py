"""What all tests share: servers as processes of their own, and a finished small study."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fsspec
import pytest
from xdist.scheduler import LoadFileScheduling

from dynolab.functions import ALLOWED
from dynolab.store import Store
from tasks.runtime.servers.services import Services, client_variables, start_services

if TYPE_CHECKING:  # what imports torch: the process that hands tests to workers runs none
    from tests.flows.analysed import Analysed
    from tests.flows.lab import Lab

START_SECONDS = 60

STARTS_SERVERS = {
    "s3_server",
    "strict_s3_server",
    "started_servers",
    "mlflow_server",
    "unstarted_mlflow",
    "prefect_server",
}
"""Fixtures that start real servers."""

# Shells start background jobs deaf to Ctrl-C, and so would be every process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST = (
    "flows/test_readme_runs.py",  # and with it all of ON_SERVERS
    "flows/test_recorded_steps.py",
    "explorer/test_browser_explorer.py",
    "flows/test_ledger_flow.py",
    "gpu/test_paths.py",
    "training/test_ranks.py",
    "forces/test_acceptance.py",
    "training/test_every_objective.py",
    "flows/test_kinds_of_training.py",
    "forces/test_kernel_size.py",
    "report/test_report.py",
    "flows/test_mitigation_flow.py",
    "library/test_wheel.py",
    "forces/test_lora.py",
    "costs/test_analyses.py",
)
"""Files that take longest; they go first, as a file is one worker's from begin to end."""


ON_SERVERS = {
    "flows/test_faults.py",
    "flows/test_readme_runs.py",
    "flows/test_registered.py",
    "flows/test_sweep.py",
    "platform/test_doors.py",
}
"""Files that use `started_servers`: these, and the study on them, are made by one worker alone."""


os.environ[ALLOWED] = "tests.objectives.losses"
# Tests compute on the CPU wherever they run: `make check-gpu` is for GPUs.
os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports make no garbage, but Python would look for it in all modules again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files begin; what starts a server is a test of services, whoever forgot to say so."""
    places = {f"tests/{file}": place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))
    for item in items:
        if STARTS_SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.services)


class OneWorkerForServers(LoadFileScheduling):
    """Gives a file to one worker, and all files that use the session's servers to one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "servers" if file.removeprefix("tests/") in ON_SERVERS else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneWorkerForServers:
    """For runs on several workers."""
    return OneWorkerForServers(config, log)


def start_s3(log: Path, **environment: str) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=output, stderr=output
        )
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return process, f"http://127.0.0.1:{port}"
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the S3 server did not start")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server that takes any credentials."""
    process, address = start_s3(tmp_path_factory.mktemp("s3") / "server.log")
    yield address
    process.kill()
    process.wait()


@pytest.fixture(scope="session")
def strict_s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server that knows no credentials at all."""
    log = tmp_path_factory.mktemp("strict-s3") / "server.log"
    process, address = start_s3(log, INITIAL_NO_AUTH_ACTION_COUNT="0")
    yield address
    process.kill()
    process.wait()


@pytest.fixture
def aws_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def s3_bucket(s3_server: str, aws_environment: None) -> str:
    """Name of a new, empty bucket."""
    name = f"bucket-{uuid4().hex[:12]}"
    fsspec.filesystem("s3", endpoint_url=s3_server, skip_instance_cache=True).mkdir(name)
    return name


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.services)])
def store_settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str | None]:
    """URL and endpoint of a new, empty store of each kind."""
    if request.param == "file":
        return {"url": f"file://{tmp_path}/store", "endpoint": None}
    bucket = request.getfixturevalue("s3_bucket")
    return {"url": f"s3://{bucket}/lab", "endpoint": request.getfixturevalue("s3_server")}


@pytest.fixture
def store(store_settings: dict[str, str | None], tmp_path: Path) -> Store:
    return Store(cache=tmp_path / "cache", **store_settings)


@pytest.fixture(scope="session")
def started_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A Prefect and an MLflow server, ready."""
    with start_services(tmp_path_factory.mktemp("servers")) as services:
        services.wait_ready()
        yield services


@pytest.fixture(scope="session")
def servers(started_servers: Services) -> dict[str, str]:
    """Variables that lead commands to a Prefect and an MLflow server of their own."""
    variables = client_variables(started_servers.home, started_servers.by_name)
    del variables["PREFECT_HOME"]  # each lab has its own
    return variables


@pytest.fixture(scope="session")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Analysed:
    """Small results for force analyses, made in this process."""
    from tests.flows.analysed import Analysed

    return Analysed(tmp_path_factory.mktemp("analysed") / "home")


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of `make_files`, which no test writes into."""
    from tests.training.small import make_files

    folder = tmp_path_factory.mktemp("inputs")
    make_files(folder)
    return folder


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, servers: dict[str, str]) -> Lab:
    """The home of a small study that nothing has disturbed."""
    from tests.flows.lab import Lab

    lab = Lab(tmp_path_factory.mktemp("undisturbed"), **servers)
    assert set(lab.study("project=undisturbed").values()) == {"computed"}
    assert lab.left_behind() == []
    return lab


@pytest.fixture
def finished(tmp_path: Path, servers: dict[str, str], undisturbed: Lab) -> Lab:
    """A home that has all results."""
    from tests.flows.lab import Lab

    return Lab(tmp_path, **servers).adopt(undisturbed)


@pytest.fixture
def lab(tmp_path: Path, servers: dict[str, str], undisturbed: Lab) -> Lab:
    """A home that has all results up to the finetuned model."""
    from tests.flows.lab import Lab

    later = ("preference", "probe", "report")
    return Lab(tmp_path, **servers).adopt(undisturbed, without=later)
