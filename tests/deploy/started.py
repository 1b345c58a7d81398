"""The services of the Compose file, started on this machine.

PostgreSQL, Redis and an S3 server are this machine's; names of containers become loopback ports.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from tasks.runtime.system.processes import free_port, kill_marked
from tests.deploy.backends import Backends, backends
from tests.deploy.composed import interpolated, one_shots, services
from tests.flows.lab import ROOT, until

PASSWORDS = ("POSTGRES_PASSWORD", "REDIS_PASSWORD")
TOKEN = "0123456789abcdef" * 2
HOME = "/home/dynolab/home"
START_SECONDS = 180.0
IN_ORDER = (
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

    def __init__(self, folder: Path, backing: Backends, s3: str) -> None:
        self.folder, self.marker = folder, uuid4().hex
        self.prefect, self.mlflow = free_port(), free_port()
        self.health = {name: free_port() for name in services()}
        login = urlsplit(f"//{backing.postgres}")
        self.password = login.password or ""
        self.given = {
            **dict.fromkeys(PASSWORDS, self.password),
            "DYNOLAB_TOKEN": TOKEN,
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "DYNOLAB_KEY": "00" * 32,
        }
        postgres = login.netloc.rpartition("@")[2]
        redis = urlsplit(backing.redis).netloc.rpartition("@")[2]
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
        }
        self.home = folder / "home"

    def text(self, name: str, value: str) -> str:
        """A value of a service as a container of this machine would have it."""
        filled = interpolated(value, self.given)
        health = {"//127.0.0.1:8080": f"//127.0.0.1:{self.health[name]}"}
        for written, place in (self.places | health | self.folders).items():
            filled = filled.replace(written, place)
        return filled

    @property
    def folders(self) -> Mapping[str, str]:
        """What the file's folders are here."""
        return {HOME: str(self.home)}

    def environment(self, name: str) -> dict[str, str]:
        """What the file sets for a service, and what lets it run beside others on one machine."""
        written: Mapping[str, str] = services()[name]["environment"]
        return {key: self.text(name, value) for key, value in written.items()} | {
            "PREFECT_WORKER_WEBSERVER_PORT": str(self.health[name]),
            "DYNOLAB_TEST": self.marker,
        }

    def run(self, name: str, words: Sequence[str]) -> tuple[list[str], dict[str, str] | None]:
        """A service's command and environment as a process of this machine."""
        passed = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        own = {"DYNOLAB_HOME": str(self.home), "PREFECT_HOME": str(self.folder / "prefect")}
        command = [sys.executable if word == "python" else self.text(name, word) for word in words]
        return command, passed | self.environment(name) | own

    def start(self, name: str) -> subprocess.Popen[bytes]:
        command, environment = self.run(name, services()[name]["command"])
        with self.log(name).open("w") as log:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def is_well(self, name: str) -> bool:
        """What the service's own health check says."""
        test = services()[name]["healthcheck"]["test"]
        assert test[0] == "CMD"
        command, environment = self.run(name, test[1:])
        ran = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True)
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
def started(
    s3: str, kind: Callable[[Path, Backends, str], Composed] = Composed
) -> Iterator[Composed]:
    """The services' surroundings; what was started ends with the block."""
    # PostgreSQL's own user has to get through to its folder, and pytest's are closed to others.
    folder = Path(tempfile.mkdtemp(prefix="dynolab-composed-"))
    folder.chmod(0o755)
    try:
        with backends(folder / "backing") as backing:
            composed = kind(folder, backing, s3)
            try:
                yield composed
            finally:
                kill_marked(f"DYNOLAB_TEST={composed.marker}")
    finally:
        shutil.rmtree(folder)
