"""The full profile's platform; PostgreSQL, Redis and S3 below it can be killed and restarted."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
import psutil

from tasks.runtime.servers.postgres_redis import backing_services
from tasks.runtime.system.processes import Process, free_port, start_child, stop_group
from tests.conftest import start_s3
from tests.faults.standing import Standing, standing
from tests.flows.lab import Lab, until

BUCKET = "lab"
STAGES = f"{BUCKET}/store/stages"


class BackedLab(Lab):
    """A lab whose results lie in S3; those of a stage are fetched to be looked at."""

    files: Any

    def markers(self, folder: str) -> list[str]:
        self.files.invalidate_cache()
        return list(self.files.glob(f"{STAGES}/{folder}/COMMITTED"))

    def manifest(self, stage: str) -> dict[str, Any]:
        local = self.home / "store" / "stages" / stage
        shutil.rmtree(local, ignore_errors=True)
        self.files.invalidate_cache()
        self.files.get(f"{STAGES}/{stage}", str(local), recursive=True)
        return super().manifest(stage)

    def left_behind(self) -> list[str]:
        self.files.invalidate_cache()
        claims = [path for path in self.files.find(STAGES) if path.endswith("/CLAIM")]
        return [*super().left_behind(), *claims]


class Backed:
    """A platform and what it stands on."""

    def __init__(self, platform: Standing, lab: BackedLab) -> None:
        self.platform, self.lab = platform, lab
        self.gate = lab.folder / "gateway"
        self._started: list[Process] = []

    def restart(self, name: str) -> None:
        """SIGKILL, and the same program again on the same port and data."""
        running = self._process(name)
        arguments, user = running.cmdline(), running.username()
        if name == "redis":  # it gives itself another title
            arguments = [arguments[0].split()[0], str(self.lab.home / "redis.conf")]
        environment = running.environ()
        running.send_signal(signal.SIGKILL)
        with suppress(psutil.TimeoutExpired):
            running.wait(10)
        mine = psutil.Process().username()
        self._started.append(
            start_child(
                "tasks.runtime.system.program",
                ["-" if user == mine else user, *arguments],
                environment=environment,
                log=self.lab.home / "logs" / f"{name}-again.log",
            )
        )

    def _process(self, name: str) -> psutil.Process:
        """The one of this test's own children."""
        words = {
            "postgres": str(self.lab.home / "postgres"),
            "redis": "redis-server",
            "s3": "tests.faults.gateway",
        }
        (found,) = (
            child
            for child in psutil.Process().children()
            if words[name] in " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE
        )
        return found

    def hold(self, pattern: str) -> None:
        """From now on requests like that are kept back from the store."""
        (self.gate / "held").unlink(missing_ok=True)
        (self.gate / "hold").write_text(pattern)

    def held(self) -> bool:
        return (self.gate / "held").exists()

    def let_go(self) -> None:
        (self.gate / "hold").unlink(missing_ok=True)

    def stop(self) -> None:
        for process in self._started:
            stop_group(process)


@contextmanager
def backed(undisturbed: Lab, without: tuple[str, ...]) -> Iterator[Backed]:
    """The full profile on a new home with a study's results, but those of some stages."""
    # PostgreSQL's own user has to get through to its folder, and pytest's are closed to others.
    folder = Path(tempfile.mkdtemp(prefix="dynolab-backed-"))
    folder.chmod(0o755)
    lab = BackedLab(folder)
    server, address = start_s3(folder / "s3.log")
    server_port, port = int(address.rpartition(":")[2]), free_port()
    (folder / "gateway").mkdir()
    arguments = [str(port), str(server_port), str(folder / "gateway")]
    gateway = start_child(
        "tests.faults.gateway", arguments, environment=os.environ, log=folder / "gateway.log"
    )
    settings = {
        "DYNOLAB_STORE": f"s3://{BUCKET}/store",
        "DYNOLAB_STORE_ENDPOINT": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    try:
        until(lambda: (folder / "gateway" / "ready").exists(), 60)
        lab.files = fsspec.filesystem(
            "s3", key="tester", secret="secret", endpoint_url=address, skip_instance_cache=True
        )
        lab.files.mkdir(BUCKET)
        for stage in (undisturbed.home / "store" / "stages").iterdir():
            if stage.name not in without:
                lab.files.put(str(stage), f"{STAGES}/{stage.name}", recursive=True)
        with backing_services(lab.home, settings) as backing, standing(lab, backing) as platform:
            running = Backed(platform, lab)
            try:
                yield running
            finally:
                running.stop()
    finally:
        stop_group(gateway)
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)
