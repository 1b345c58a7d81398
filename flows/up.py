"""The whole platform by one command: servers, what they stand on, deployments and workers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Literal

from dynolab.errors import ConfigError, ServiceFailed
from tasks.runtime.servers.postgres_redis import (
    backing_services,
    let_postgres_through,
    write_environment,
)
from tasks.runtime.servers.server_processes import PREFECT, Address, Service, Services
from tasks.runtime.servers.standing_servers import up
from tasks.runtime.system.processes import kill_marked, last_lines, start_child, stop_group
from tasks.runtime.system.secret_files import KEY, own_folder, signing_key
from tasks.runtime.system.settings import Settings

Profile = Literal["local", "full"]

PROFILES: tuple[Profile, ...] = ("local", "full")
POOLS = ("cpu", "training")
REGISTER_SECONDS = 180.0
_MARK = "DYNOLAB_UP"


def profile_named(name: str) -> Profile:
    """The profile of that name; `ConfigError` where there is none."""
    for known in PROFILES:
        if name == known:
            return known
    raise ConfigError("profile", name, f"choose one of {', '.join(PROFILES)}")


def start(
    home: Path,
    announce: Callable[[str], None],
    *,
    profile: Profile = "local",
    prefect_port: int = 4200,
    mlflow_port: int = 5000,
) -> None:
    """Starts everything, says where it is, and serves until Ctrl-C or SIGTERM ends everything.

    The full profile stands on PostgreSQL and Redis, in a home of its own; the file `environment`
    there leads other commands to it.
    """
    home, backing = own_folder(home.resolve()), None
    if profile == "full":
        let_postgres_through(home)
        home = home / profile
        backing = backing_services(home)

    @contextmanager
    def workers(services: Services) -> Iterator[Services]:
        if profile == "full":
            file = home / "environment"
            own = {"DYNOLAB_HOME": str(home), KEY: signing_key(home).hex()}
            write_environment(file, services.environment() | own)
            announce(f"results {Settings.from_environment(os.environ | own).store}")
            announce(f"shell   set -a; . {quote(str(file))}  # other commands then use all this")
        with work_for(services) as started:
            announce("flows   Prefect, Deployments: choose one, Run, Custom run; Ctrl-C ends all")
            yield started

    up(
        home,
        announce,
        prefect_port=prefect_port,
        mlflow_port=mlflow_port,
        backing=backing,
        beside=workers,
    )


@contextmanager
def work_for(services: Services) -> Iterator[Services]:
    """Registers the deployments with servers that are ready, and works for them.

    **Raises** `ServiceFailed` where the registration fails.
    """
    home, mark = services.home, f"{os.getpid()}-{services.addresses[PREFECT].pid}"
    environment = {
        **os.environ,
        **services.environment(),
        "DYNOLAB_HOME": str(home),
        _MARK: mark,
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    _register(home, environment)
    workers = Services(home, tuple(_worker(home, pool, environment) for pool in POOLS))
    try:
        with workers:
            yield workers
    finally:
        kill_marked(f"{_MARK}={mark}")


def _register(home: Path, environment: Mapping[str, str]) -> None:
    log = home / "logs" / "register.log"
    process = start_child("flows.register", ["alone"], environment=environment, log=log)
    try:
        if process.wait(REGISTER_SECONDS) != 0:
            raise ServiceFailed("the registration of deployments", last_lines(log))
    except subprocess.TimeoutExpired as error:
        raise ServiceFailed("the registration of deployments", last_lines(log)) from error
    finally:
        stop_group(process)


def worker_arguments(pool: str, name: str | None = None) -> list[str]:
    """Of `python -m prefect`: works for a pool, here and in containers."""
    return [
        "worker",
        "start",
        "--pool",
        pool,
        "--type",
        "process",
        "--name",
        name or pool,
        "--install-policy",
        "never",
    ]


def _worker(home: Path, pool: str, environment: Mapping[str, str]) -> Service:
    """A process worker of a pool; it starts one process for each flow run."""
    log = home / "logs" / f"worker-{pool}.log"
    process = start_child("prefect", worker_arguments(pool), environment=environment, log=log)
    return Service(f"the {pool} worker", Address("", process.pid), log, process)
