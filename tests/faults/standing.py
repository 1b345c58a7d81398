"""Servers and workers as `dynolab up` starts them; a test may kill each and start it again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from unittest.mock import patch

import psutil

from flows.up import work_for
from tasks.runtime.launch import devices
from tasks.runtime.servers.service import PREFECT, Service, is_healthy
from tasks.runtime.servers.services import ALL, Services, start_services
from tests.flows.history import finished_history, histories, lost
from tests.flows.lab import SMALL, Lab, address_with_login, until
from tests.platform.served import Served

SETTLE_SECONDS = 20.0
GPUS = ("a", "b")
"""The host's, by name; the ranks compute on the CPU."""


class Standing(Served):
    """The platform on one home."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.servers: dict[str, Service] = {}
        self._workers: ExitStack | None = None
        self._worker_pids: dict[str, int] = {}
        for name in ALL:
            self._serve(name, 0)

    def _serve(self, name: str, port: int) -> None:
        started = start_services(self.lab.home, [name], ports={name: port}, standing=True)
        self.servers[name] = started.by_name[name]
        self._keep()

    def work(self) -> None:
        """Registers the deployments and starts the workers."""
        self._all_servers().wait_ready()
        self._workers = ExitStack()
        workers = self._workers.enter_context(work_for(self._all_servers()))
        self._worker_pids = {pool: service.pid for pool, service in workers.by_name.items()}
        self._keep()

    def _all_servers(self) -> Services:
        return Services(self.lab.home, self.servers)

    @property
    def variables(self) -> dict[str, str]:
        """What leads clients to the servers and logs them in."""
        return self._all_servers().environment()

    def _keep(self) -> None:
        servers = {server.pid for server in self.servers.values()}
        self.lab.kept = servers | set(self._worker_pids.values())

    def kill(self, name: str) -> None:
        """SIGKILL for a server."""
        process = self.servers[name].process
        assert process is not None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.servers[name].free_port()

    def start_again(self, name: str) -> None:
        """The killed server, on its port and its data."""
        self._serve(name, int(self.servers[name].url.rpartition(":")[2]))
        self.servers[name].wait_ready()

    def kill_worker(self, pool: str = "training") -> None:
        """SIGKILL for a worker, and for nothing else."""
        os.kill(self._worker_pids[pool], signal.SIGKILL)

    def work_again(self) -> None:
        """What a person does who finds a worker dead: ends what is left, and starts it anew."""
        self.stop_work()
        self.work()

    def clear(self) -> None:
        """Nothing at work, and none of what a fault before may have left."""
        for name in ALL:
            if not is_healthy(name, self.servers[name].url):
                self.kill(name)
                self.start_again(name)
        if self.left_behind():
            self.stop_work()
            for pid in set(self.lab.processes()) - self.lab.kept:
                os.kill(pid, signal.SIGKILL)
            for name in ("scratch", "outbox"):
                shutil.rmtree(self.lab.home / name, ignore_errors=True)
            self.work()
        assert self.left_behind() == []

    def stop_work(self) -> None:
        if self._workers is not None:
            self._workers.close()
            self._workers, self._worker_pids = None, {}

    def stop(self) -> None:
        self.stop_work()
        self._all_servers().stop()

    @property
    def prefect(self) -> str:
        return f"{self.servers[PREFECT].url}/api"

    @property
    def mlflow(self) -> str:
        """MLflow's address, with the login."""
        return address_with_login(self.variables)

    @property
    def login(self) -> dict[str, str]:
        """The header that logs in."""
        return dict(json.loads(self.variables["PREFECT_CLIENT_CUSTOM_HEADERS"]))

    def train(self, project: str) -> str:
        """A preference training of the small study, by its deployment; gives the flow run."""
        return self.start("train/preference", study_text=SMALL.read_text(), project=project)

    def cancel(self, run: str) -> float:
        """Asks for the run's end as the interface does; seconds until its last rank is dead."""
        began = time.monotonic()
        self.api("POST", f"flow_runs/{run}/set_state", state={"type": "CANCELLING"})
        until(lambda: not self.lab.ranks(), 60)
        return time.monotonic() - began

    def statuses(self, project: str) -> list[str]:
        """Of the project's MLflow runs of preference training."""
        return [history.status for history in histories(self.mlflow, project, "preference")]

    def metrics_lost(self, project: str, undisturbed: Lab) -> list[str]:
        return lost(finished_history(self.mlflow, project), undisturbed.history())

    def free_gpus(self) -> list[str]:
        """The GPUs whose lock nobody holds."""
        with patch.object(tempfile, "tempdir", str(self.lab.temporary)), ExitStack() as asked:
            return [gpu for gpu in GPUS if devices._lock(f"device-{gpu}", asked, wait=False)]

    def left_behind(self) -> list[str]:
        """What a run left, locked GPUs too, once what ends by itself has had its time."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return left

    def _left(self) -> list[str]:
        left = [path for path in self.lab.left_behind() if not path.endswith("dynolab-devices")]
        return left + [f"GPU {gpu}" for gpu in GPUS if gpu not in self.free_gpus()]


@contextmanager
def standing(lab: Lab) -> Iterator[Standing]:
    """A platform, ready to work, on the home of a lab."""
    chosen = {name: lab.environment[name] for name in ("DYNOLAB_TEST", "TMPDIR")}
    with patch.dict(os.environ, chosen):
        platform = Standing(lab)
        try:
            platform.work()
            yield platform
        finally:
            platform.stop()


def launcher_of(rank: int) -> psutil.Process:
    """torchrun's own process."""
    parent = psutil.Process(rank).parent()
    assert parent is not None
    return parent


def engine_of(rank: int) -> psutil.Process:
    """The process of the flow run that a rank works for."""
    parent = launcher_of(rank).parent()
    assert parent is not None and "tasks.runtime.flow_run_process" in " ".join(parent.cmdline())
    return parent
