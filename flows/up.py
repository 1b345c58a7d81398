"""Starts the whole platform: servers, deployments and workers."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dynolab.errors import ConfigError, ServiceFailed
from tasks.runtime.cleanup import reap_orphans
from tasks.runtime.servers.form_checks import SOCKET
from tasks.runtime.servers.service import MLFLOW, PREFECT, START_SECONDS, Service
from tasks.runtime.servers.services import Services, client_variables, listener_of
from tasks.runtime.servers.standing import (
    login_links,
    running_services,
    standing_services,
    watch,
)
from tasks.runtime.system.computing import COMPUTING
from tasks.runtime.system.invocation import invocation
from tasks.runtime.system.processes import Process, kill_marked, last_lines, start_child, stop_group
from tasks.runtime.system.secret_files import own_folder
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.tracking import Tracking

POOLS = ("cpu", "training")
REGISTER_SECONDS = 180.0
SENDING_SECONDS = 5.0  # at the end, for what the workers' runs left
_MARK = "DYNOLAB_UP"


def start(
    home: Path,
    announce: Callable[[str], None],
    *,
    prefect_port: int,
    mlflow_port: int,
    notify: str | None = None,
) -> None:
    """Starts everything, announces the login links, and serves until an interruption.

    **Arguments:** `notify`: address that alerts of runs go to.

    **Raises** like `standing_services` and `watch`, and `ConfigError` before anything starts if no
    message arrives at `notify`.
    """
    home = own_folder(home.resolve())
    ports = {PREFECT: prefect_port, MLFLOW: mlflow_port}
    if notify:
        from flows.deployment.alerts import VARIABLE, check_alerts

        for name, port in ports.items():
            listener_of(name, port).close()  # the message says that it is up
        check_alerts(notify)
        os.environ[VARIABLE] = notify  # of the registration
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        reap_orphans()
        registering: list[Process] = []
        services = stack.enter_context(
            standing_services(home, ports, lambda begun: registering.append(register(begun)))
        )
        services.log_in()
        os.environ.pop("DYNOLAB_NOTIFY", None)  # it may hold a secret: runs do not get it
        # Sends what dead processes left, also those that die later and that nobody retries.
        tracking = Tracking(services.by_name[MLFLOW].url, home / "outbox", experiment="")
        stack.callback(tracking.close, SENDING_SECONDS)
        workers = stack.enter_context(work_for(services, registering.pop()))
        for line in login_links(services):
            announce(line)
        for line in last_lines(home / "logs" / "register.log", 100):
            if line.startswith("missed"):  # schedules that came due while nothing ran
                announce(line)
        exports = shlex.join(
            f"{name}={value}"
            for name, value in client_variables(home, services.by_name).items()
            if name in ("PREFECT_API_URL", "PREFECT_CLIENT_CUSTOM_HEADERS")
        )
        announce(f"shell   export {exports}  # before `prefect deployment ls` and the like")
        announce("flows   Prefect, Deployments: choose one, Run, Custom run; Ctrl-C ends all")
        watch(services, workers)


def use_platform() -> None:
    """Leads Prefect's client to the running platform. **Raises** `ConfigError` if none runs."""
    settings = Settings.from_environment()
    running = running_services(settings.home)
    if settings.prefect_api_url is None and PREFECT not in running:
        remedy = f"no platform runs on it; start {invocation()} up and try again"
        raise ConfigError("home", str(settings.home), remedy)
    os.environ.update({} if settings.prefect_api_url else client_variables(settings.home, running))


def register(services: Services) -> Process:
    """Starts the registration of the deployments, which waits for the servers to answer.

    Importing the flows takes as long as the servers' start, so both go on at once.
    """
    log = services.home / "logs" / "register.log"
    (services.home / SOCKET).unlink(missing_ok=True)
    waiting = {
        "PREFECT_API_REQUEST_TIMEOUT": str(START_SECONDS),
        "PREFECT_CLIENT_MAX_RETRIES": "50",
    }
    environment = _environment(services) | waiting
    return start_child("flows.deploy", ["alone"], environment=environment, log=log)


@contextmanager
def work_for(services: Services, registering: Process | None = None) -> Iterator[Services]:
    """Waits until the deployments are registered with the servers, and runs their workers.

    The process that registered them goes on beside the workers: it checks filled forms.

    **Arguments:** `registering`: the registration, if it has begun.

    **Raises** `ServiceFailed` if the registration fails.
    """
    home, environment = services.home, _environment(services)
    process, log = registering or register(services), home / "logs" / "register.log"
    deadline = time.monotonic() + REGISTER_SECONDS
    while not (home / SOCKET).exists():
        if process.poll() is not None or time.monotonic() > deadline:
            stop_group(process)
            raise ServiceFailed("the registration of deployments", last_lines(log))
        time.sleep(0.05)

    def check_again() -> Process:
        return start_child(
            "flows.deployment.checks", [], environment=environment, log=log.with_name("checks.log")
        )

    checks = Service("the check of forms", "", process.pid, log, process, start=check_again)
    workers = {pool: _worker(home, pool, environment) for pool in POOLS}
    running = Services(home, {**workers, "forms": checks})
    try:
        with running:
            yield running
    finally:
        kill_marked(f"{_MARK}={environment[_MARK]}")


def _environment(services: Services) -> dict[str, str]:
    """Of the registration and the workers; it marks all processes that come from them."""
    return {
        **COMPUTING,
        **os.environ,
        **services.environment(),
        "DYNOLAB_HOME": str(services.home),
        _MARK: f"{os.getpid()}-{services.by_name[PREFECT].pid}",
    }


def worker_arguments(pool: str, name: str | None = None) -> list[str]:
    """Arguments of `python -m prefect` that start a worker for a pool, also in containers."""
    return (
        f"worker start --pool {pool} --type process --name {name or pool} --install-policy never"
    ).split()


def _worker(home: Path, pool: str, environment: Mapping[str, str]) -> Service:
    """Starts a pool's process worker, which starts one process for each flow run."""
    log = home / "logs" / f"worker-{pool}.log"
    # By default a worker asks for new runs every ten seconds.
    variables = {"PREFECT_WORKER_QUERY_SECONDS": "1", **environment}
    process = start_child("prefect", worker_arguments(pool), environment=variables, log=log)
    return Service(f"the {pool} worker", "", process.pid, log, process)
