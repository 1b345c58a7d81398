"""What Compose would start, started here: each service's own command, environment and check.

PostgreSQL, Redis and an S3 server are this machine's; names of containers become loopback ports.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import redis
import requests
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from tasks.runtime.system.processes import free_port, kill_marked
from tests.deploy.composed import interpolated, one_shots, services
from tests.flows.lab import ROOT, until

# Debian has PostgreSQL's programs in a folder of their version.
PROGRAMS = os.pathsep.join([os.environ["PATH"], *glob.glob("/usr/lib/postgresql/*/bin")])  # noqa: PTH207
MISSING = [n for n in ("postgres", "initdb", "redis-server") if not shutil.which(n, path=PROGRAMS)]
pytestmark = [
    pytest.mark.services,
    pytest.mark.study,
    pytest.mark.skipif(bool(MISSING), reason=f"not on the path: {MISSING}"),
]
TEMPLATE = json.loads((ROOT / "deploy/kubernetes/base-job-template.json").read_text())
TOKEN = "0123456789abcdef" * 2
START_SECONDS = 180.0
IN_ORDER = (
    "redis",
    "bucket-init",
    "prefect-migrate",
    "prefect-server",
    "prefect-services",
    "mlflow",
    "bootstrap",
    "worker-cpu",
)
"""Services that need no further profile, each after what it depends on."""


class Composed:
    """The services, one after the other."""

    def __init__(self, folder: Path, s3: str) -> None:
        self.folder, self.marker, self.password = folder, uuid4().hex, uuid4().hex
        self.health = {name: free_port() for name in services()}
        ports = {name: free_port() for name in ("postgres", "redis", "prefect-server", "mlflow")}
        self.postgres, self.redis = ports["postgres"], ports["redis"]
        self.begun: list[subprocess.Popen[bytes]] = []
        self.prefect, self.mlflow = (
            f"http://127.0.0.1:{ports[name]}" for name in ("prefect-server", "mlflow")
        )
        self.given = {
            **dict.fromkeys(("POSTGRES_PASSWORD", "REDIS_PASSWORD"), self.password),
            "SWEEPS_PASSWORD": f"{self.password}sweeps",
            "DYNOLAB_TOKEN": TOKEN,
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "DYNOLAB_KEY": "00" * 32,
        }
        self.places = {
            "http://s3:8333": s3,
            "s3://dynolab/": f"s3://{self.marker}/",
            "dir /data": f"dir {folder}\nbind 127.0.0.1\nport {self.redis}",
            "/home/dynolab/home": str(folder / "home"),
        }
        for host, port in (("postgres", 5432), ("redis", 6379)):
            self.places[f"@{host}:{port}"] = f"@127.0.0.1:{ports[host]}"
        for host, port in (("prefect-server", 4200), ("mlflow", 5000)):
            for written in (f"//{host}:{port}", f"//127.0.0.1:{port}"):
                self.places[written] = f"//127.0.0.1:{ports[host]}"
            self.places[f"0.0.0.0:{port}"] = f"127.0.0.1:{ports[host]}"

    def text(self, name: str, value: str) -> str:
        """A value of a service as a container of this machine would have it."""
        filled = interpolated(value, self.given)
        health = {"//127.0.0.1:8080": f"//127.0.0.1:{self.health[name]}"}
        for written, place in (self.places | health).items():
            filled = filled.replace(written, place)
        return filled

    def command(self, name: str, words: Sequence[str]) -> list[str]:
        return [sys.executable if word == "python" else self.text(name, word) for word in words]

    def environment(self, name: str) -> dict[str, str]:
        """What the file sets for a service, and what lets it run beside others on one machine."""
        passed = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        written = services()[name]["environment"].items()
        return {
            **passed,
            **{key: self.text(name, value) for key, value in written},
            "PREFECT_WORKER_WEBSERVER_PORT": str(self.health[name]),
            "DYNOLAB_TEST": self.marker,
            "DYNOLAB_HOME": str(self.folder / "home"),
            "PREFECT_HOME": str(self.folder / "prefect"),
        }

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def begin(self, name: str) -> subprocess.Popen[bytes]:
        """Starts a service and waits for its end or its health, as those do that depend on it."""
        with self.log(name).open("w") as log:
            process = subprocess.Popen(
                self.command(name, services()[name]["command"]),
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=self.environment(name),
                start_new_session=True,
            )
        self.begun.append(process)
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready(name, process):
            assert process.poll() is None, self.log(name).read_text()[-3000:]
            assert time.monotonic() < deadline, self.log(name).read_text()[-3000:]
            time.sleep(0.5)
        return process

    def is_ready(self, name: str, process: subprocess.Popen[bytes]) -> bool:
        """What the service's own health check says, where it goes by what this machine has."""
        if name in one_shots():
            return process.poll() == 0
        if name == "redis":  # its check names no port
            retry = Retry(ConstantBackoff(0.1), 100)
            with redis.Redis(port=self.redis, password=self.password, retry=retry) as client:
                return client.ping()
        if name == "prefect-services":  # its check reads its container's own connections
            return "Starting services" in self.log(name).read_text()
        kind, *words = services()[name]["healthcheck"]["test"]
        assert kind == "CMD"
        checked = subprocess.run(
            self.command(name, words), env=self.environment(name), capture_output=True
        )
        return checked.returncode == 0

    @contextmanager
    def database(self) -> Iterator[None]:
        """A PostgreSQL with the databases that its image would make."""
        data, password = self.folder / "postgres", self.folder / "password"
        data.mkdir(mode=0o700)
        password.write_text(self.password)
        user: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            shutil.chown(data, "postgres")
        made = ["-U", "admin", f"--pwfile={password}", "--auth=scram-sha-256", "--no-sync"]
        found = os.environ | {"PATH": PROGRAMS}
        initdb = [*user, "initdb", "-D", data, *made]
        subprocess.run(initdb, check=True, capture_output=True, cwd="/", env=found)
        settings = [f"--port={self.postgres}", "--unix_socket_directories="]
        words = [*user, *services()["postgres"]["command"], "-D", data, *settings]
        with self.log("postgres").open("wb") as log:
            process = subprocess.Popen(words, stdout=log, stderr=log, cwd="/", env=found)
        try:
            until(self.has_databases, START_SECONDS)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)

    def has_databases(self) -> bool:
        try:
            with self.connected("admin", "postgres") as connection:
                connection.execute("CREATE DATABASE prefect")
        except psycopg.OperationalError:
            return False
        # As the image's entry point does.
        words = ["psql", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.postgres)]
        words += ["-U", "admin", "-d", "prefect", "-f", str(ROOT / "docker/databases.sql")]
        secrets = {"PGPASSWORD": self.password, "SWEEPS_PASSWORD": self.given["SWEEPS_PASSWORD"]}
        environment = os.environ | {"PATH": PROGRAMS} | secrets
        subprocess.run(words, check=True, capture_output=True, cwd="/", env=environment)
        return True

    def connected(self, user: str, database: str) -> psycopg.Connection[Any]:
        password = self.given["POSTGRES_PASSWORD" if user == "admin" else "SWEEPS_PASSWORD"]
        address = f"postgresql://{user}:{password}@127.0.0.1:{self.postgres}/{database}"
        return psycopg.connect(address, autocommit=True)


@pytest.fixture
def composed(s3_server: str) -> Iterator[Composed]:
    # PostgreSQL's own user has to get through to its folder, and pytest's are closed to others.
    with tempfile.TemporaryDirectory(prefix="dynolab-composed-") as folder:
        Path(folder).chmod(0o755)
        composed = Composed(Path(folder), s3_server)
        with composed.database():
            try:
                yield composed
            finally:
                kill_marked(f"DYNOLAB_TEST={composed.marker}")
                for process in composed.begun:  # Redis writes its title over what marks it
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)


def workers_may_do_nothing_in_databases_but_sweep(composed: Composed) -> None:
    for database in ("prefect", "mlflow", "postgres"):
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            composed.connected("sweeps", database)
    with composed.connected("sweeps", "sweeps") as connection:
        connection.execute("CREATE TABLE tried (trial int)")
        for refused in ("CREATE ROLE other", "CREATE DATABASE other", "SELECT pg_read_file('/x')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(refused)


def test_each_service_comes_up_by_its_own_command_and_passes_its_own_check(
    composed: Composed,
) -> None:
    workers_may_do_nothing_in_databases_but_sweep(composed)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    api = f"{composed.prefect}/api"
    for name in IN_ORDER:
        if name == "bootstrap":
            pool = {"name": "training", "type": "kubernetes", "base_job_template": TEMPLATE}
            made = requests.post(f"{api}/work_pools/", headers=headers, json=pool, timeout=30)
            assert made.ok, made.text
        process = composed.begin(name)
        words = Path(f"/proc/{process.pid}/cmdline").read_text() if process.poll() is None else ""
        assert composed.password not in words and TOKEN not in words
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=composed.redis, password="guess").ping()
    kept = requests.get(f"{api}/work_pools/training", headers=headers, timeout=30).json()
    assert (kept["type"], kept["base_job_template"]) == ("kubernetes", TEMPLATE)
    study = requests.get(f"{api}/deployments/name/study/a-study", headers=headers, timeout=30)
    assert study.ok and study.json()["entrypoint"] == "flows.deploy.study"

    def workers() -> list[tuple[str, str]]:
        found = requests.post(
            f"{api}/work_pools/cpu/workers/filter", headers=headers, json={}, timeout=30
        )
        return [(worker["name"], worker["status"]) for worker in found.json()]

    # A worker is healthy before its first heartbeat has come to the server.
    assert until(workers, START_SECONDS) == [("cpu", "ONLINE")]
    assert requests.get(f"{api}/deployments/name/study/a-study", timeout=30).status_code == 401
    mlflow = f"{composed.mlflow}/api/2.0/mlflow/experiments/get"
    found = requests.get(mlflow, params={"experiment_id": "0"}, headers=headers, timeout=30)
    assert found.ok
    for name in IN_ORDER:
        for secret in (composed.password, TOKEN):
            assert secret not in composed.log(name).read_text(), name
