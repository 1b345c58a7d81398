"""What Compose would start, started here: each service's own command, environment and check.

PostgreSQL, Redis and an S3 server are this machine's; names of containers become loopback ports.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import requests

from tasks.runtime.servers.postgres_redis import Backing, backing_services, missing_programs
from tasks.runtime.system.processes import free_port, kill_marked
from tests.deploy.composed import interpolated, one_shots, services
from tests.flows.lab import ROOT, until

pytestmark = [
    pytest.mark.services,
    pytest.mark.study,
    pytest.mark.skipif(bool(missing_programs()), reason=f"not installed: {missing_programs()}"),
]
OURS = [
    "bucket-init",
    "prefect-migrate",
    "prefect-server",
    "prefect-services",
    "mlflow",
    "bootstrap",
    "worker-cpu",
]
PASSWORDS = ("POSTGRES_PASSWORD", "REDIS_PASSWORD")
TOKEN = "0123456789abcdef" * 2
TEMPLATE = json.loads((ROOT / "deploy/kubernetes/base-job-template.json").read_text())
START_SECONDS = 180.0


class Composed:
    """The services, one after the other."""

    def __init__(self, folder: Path, backing: Backing, s3: str) -> None:
        self.folder, self.marker = folder, uuid4().hex
        self.prefect, self.mlflow, self.health = free_port(), free_port(), free_port()
        login = urlsplit(backing.clients["DYNOLAB_SWEEPS"])
        self.password = login.password or ""
        self.given = {
            **dict.fromkeys(PASSWORDS, self.password),
            "DYNOLAB_TOKEN": TOKEN,
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "DYNOLAB_KEY": "00" * 32,
        }
        postgres = login.netloc.rpartition("@")[2]
        redis = urlsplit(backing.servers["PREFECT_REDIS_MESSAGING_URL"]).netloc.rpartition("@")[2]
        self.places = {
            "@postgres:5432": f"@{postgres}",
            "@redis:6379": f"@{redis}",
            "http://s3:8333": s3,
            "s3://dynolab/": f"s3://{self.marker}/",
            "//prefect-server:4200": f"//127.0.0.1:{self.prefect}",
            "//127.0.0.1:4200": f"//127.0.0.1:{self.prefect}",
            "0.0.0.0:4200": f"127.0.0.1:{self.prefect}",
            "//mlflow:5000": f"//127.0.0.1:{self.mlflow}",
            "//127.0.0.1:5000": f"//127.0.0.1:{self.mlflow}",
            "0.0.0.0:5000": f"127.0.0.1:{self.mlflow}",
            "//127.0.0.1:8080": f"//127.0.0.1:{self.health}",
            "/home/dynolab/home": str(folder / "home"),
        }

    def text(self, value: str) -> str:
        """A value of the file as a container of this machine would have it."""
        filled = interpolated(value, self.given)
        for name, place in self.places.items():
            filled = filled.replace(name, place)
        return filled

    def environment(self, name: str) -> dict[str, str]:
        written: Mapping[str, str] = services()[name]["environment"]
        passed = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        return passed | {
            **{key: self.text(value) for key, value in written.items()},
            "DYNOLAB_HOME": str(self.folder / "home"),
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_WORKER_WEBSERVER_PORT": str(self.health),
            "DYNOLAB_TEST": self.marker,
        }

    def command(self, words: list[str]) -> list[str]:
        return [sys.executable if word == "python" else self.text(word) for word in words]

    def start(self, name: str) -> subprocess.Popen[bytes]:
        with self.log(name).open("w") as log:
            return subprocess.Popen(
                self.command(services()[name]["command"]),
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=self.environment(name),
                start_new_session=True,
            )

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def is_well(self, name: str) -> bool:
        """What the service's own health check says."""
        test = services()[name]["healthcheck"]["test"]
        assert test[0] == "CMD"
        ran = subprocess.run(
            self.command(test[1:]),
            env=self.environment(name),
            cwd=self.folder,
            capture_output=True,
        )
        return ran.returncode == 0

    def begin(self, name: str) -> None:
        """Starts a service and waits for its end or its health, as those do that depend on it."""
        process, began = self.start(name), time.monotonic()
        if name in one_shots():
            assert process.wait(START_SECONDS) == 0, self.log(name).read_text()[-3000:]
            return
        if name == "prefect-services":  # its check reads its container's own connections
            until(lambda: "Starting services" in self.log(name).read_text(), START_SECONDS)
            assert process.poll() is None
            return
        while not self.is_well(name):
            assert process.poll() is None, self.log(name).read_text()[-3000:]
            assert time.monotonic() < began + START_SECONDS, self.log(name).read_text()[-3000:]
            time.sleep(1)


@contextmanager
def started(s3: str) -> Iterator[Composed]:
    # PostgreSQL's own user has to get through to its folder, and pytest's are closed to others.
    folder = Path(tempfile.mkdtemp(prefix="dynolab-composed-"))
    folder.chmod(0o755)
    try:
        with backing_services(folder / "backing", {}) as backing:
            composed = Composed(folder, backing, s3)
            try:
                yield composed
            finally:
                kill_marked(f"DYNOLAB_TEST={composed.marker}")
    finally:
        shutil.rmtree(folder)


def test_each_service_comes_up_by_its_own_command_and_passes_its_own_check(
    s3_server: str,
) -> None:
    with started(s3_server) as composed:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        api = f"http://127.0.0.1:{composed.prefect}/api"
        for name in OURS:
            if name == "bootstrap":
                pool = {"name": "training", "type": "kubernetes", "base_job_template": TEMPLATE}
                made = requests.post(f"{api}/work_pools/", headers=headers, json=pool, timeout=30)
                assert made.ok, made.text
            composed.begin(name)
        kept = requests.get(f"{api}/work_pools/training", headers=headers, timeout=30).json()
        assert (kept["type"], kept["base_job_template"]) == ("kubernetes", TEMPLATE)
        study = requests.get(f"{api}/deployments/name/study/study", headers=headers, timeout=30)
        assert study.ok and study.json()["entrypoint"] == "flows.deployments.study"

        def workers() -> list[tuple[str, str]]:
            found = requests.post(
                f"{api}/work_pools/cpu/workers/filter", headers=headers, json={}, timeout=30
            )
            return [(worker["name"], worker["status"]) for worker in found.json()]

        # A worker is healthy before its first heartbeat has come to the server.
        assert until(workers, START_SECONDS) == [("cpu", "ONLINE")]
        assert requests.get(f"{api}/deployments/name/study/study", timeout=30).status_code == 401
        mlflow = f"http://127.0.0.1:{composed.mlflow}/api/2.0/mlflow/experiments/get"
        found = requests.get(mlflow, params={"experiment_id": "0"}, headers=headers, timeout=30)
        assert found.ok
        for name in OURS:
            for secret in (composed.password, TOKEN):
                assert secret not in composed.log(name).read_text(), name
