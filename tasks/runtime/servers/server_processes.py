"""Starts Prefect's and MLflow's servers as child processes of the command that needs them.

Without a Prefect server, a flow would start Prefect's temporary one, which others cannot end.
Servers started here end with their command, even if it is killed.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from dynolab.errors import ConfigError, ServiceFailed
from tasks.runtime.system.processes import (
    Process,
    ending_signal,
    last_lines,
    listening_socket,
    start_child,
    stop_group,
)
from tasks.runtime.system.secret_files import TOKEN, login_token, own_folder

PREFECT, MLFLOW = "prefect", "mlflow"
ALL = (PREFECT, MLFLOW)
START_SECONDS = 120.0
_HEALTH_PATH = {PREFECT: "/api/health", MLFLOW: "/health"}
_ATTEMPT_SECONDS = 2.0
_QUIET = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # MLflow reads only "true" in DO_NOT_TRACK
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}


@dataclass(frozen=True)
class Address:
    """A server's URL (`http://host:port`, its UI) and process id."""

    url: str
    pid: int


@dataclass(frozen=True)
class Service:
    """One server; `process` is None if another command started it, and ends it."""

    name: str
    address: Address
    log: Path
    process: Process | None = None

    def check_alive(self) -> None:
        """Raise ServiceFailed if the server's process has ended."""
        if self.process is not None and self.process.poll() is not None:
            raise self._failed(f"it ended with exit code {self.process.returncode}")

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until the server answers; ServiceFailed if it ends or after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not is_healthy(self.name, self.address.url):
            self.check_alive()
            if time.monotonic() > deadline:
                raise self._failed(f"no answer from {self.address.url} within {timeout:.0f} s")
            time.sleep(0.05)

    def _failed(self, reason: str) -> ServiceFailed:
        return ServiceFailed(self.name, [*last_lines(self.log), f"({reason}; log: {self.log})"])


@dataclass(frozen=True)
class Services:
    """The servers that one command uses; a context manager that ends those it started."""

    home: Path
    services: tuple[Service, ...]

    @property
    def addresses(self) -> dict[str, Address]:
        """Name of each server → its address."""
        return {service.name: service.address for service in self.services}

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until every server answers; ServiceFailed if one does not."""
        for service in self.services:
            service.wait_ready(timeout)

    def check_alive(self) -> None:
        """Raise ServiceFailed if a server started here has ended."""
        for service in self.services:
            service.check_alive()

    def environment(self) -> dict[str, str]:
        """Environment variables for Prefect's and MLflow's clients to use these servers.

        Set them before importing either: Prefect reads its settings at import.
        """
        return {**_QUIET, **client_variables(self.home, self.addresses)}

    def stop(self) -> None:
        """End the servers started here, not those of other commands."""
        started = [service.process for service in self.services if service.process is not None]
        for process in started:
            process.send_signal(ending_signal())  # all first, so that they end in parallel
        for process in started:
            stop_group(process)

    def __enter__(self) -> Services:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def client_variables(home: Path, addresses: Mapping[str, Address]) -> dict[str, str]:
    """Environment variables with the servers' addresses and login, for their clients."""
    if not addresses:
        return {}
    token = login_token(home)
    variables: dict[str, str] = {}
    if PREFECT in addresses:
        variables |= {
            "PREFECT_API_URL": f"{addresses[PREFECT].url}/api",
            "PREFECT_HOME": str(home / PREFECT),
            # Not PREFECT_API_AUTH_STRING: most of Prefect's WebSockets do not send it.
            "PREFECT_CLIENT_CUSTOM_HEADERS": json.dumps({"Authorization": f"Bearer {token}"}),
        }
    if MLFLOW in addresses:
        variables |= {
            "MLFLOW_TRACKING_URI": addresses[MLFLOW].url,
            "MLFLOW_TRACKING_USERNAME": "dynolab",
            "MLFLOW_TRACKING_PASSWORD": token,
        }
    return variables


def start_services(
    home: Path,
    names: Sequence[str] = ALL,
    *,
    ports: Mapping[str, int] | None = None,
    standing: bool = False,
) -> Services:
    """Start servers on loopback and return at once; `wait_ready` waits for them.

    Their addresses are valid at once: a request made before a server is ready waits for it.

    **Arguments**

    - `home`: holds their databases (`prefect/prefect.db`, `mlflow/mlflow.db`), MLflow's
      artifacts (`mlflow/artifacts/`) and logs (`logs/<name>.log`).
    - `ports`: name → port; default: any free one.
    - `standing`: for servers that people use while no command runs.

    **Raises** `ConfigError` if a port is taken, after ending the servers already started.
    """
    home = own_folder(home.resolve())
    started = Services(home, ())
    try:
        for name in names:
            service = _start(home, name, (ports or {}).get(name, 0), standing)
            started = replace(started, services=(*started.services, service))
    except BaseException:
        started.stop()
        raise
    return started


def _start(home: Path, name: str, port: int, standing: bool) -> Service:
    (home / name).mkdir(parents=True, exist_ok=True)
    log = home / "logs" / f"{name}.log"
    try:
        listener = listening_socket(port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        remedy = "another program uses this port; stop that program or choose another port"
        raise ConfigError(f"{name}_port", port, remedy) from error
    with listener:
        host, port = listener.getsockname()
        process = start_child(
            "tasks.runtime.servers.serve",
            [name, str(home / name), str(listener.fileno()), *(["standing"] if standing else [])],
            environment={**os.environ, **_QUIET, TOKEN: login_token(home)},
            log=log,
            pass_fds=[listener.fileno()],
        )
    return Service(name, Address(f"http://{host}:{port}", process.pid), log, process)


def is_healthy(name: str, url: str) -> bool:
    """Whether the server `name` answers at `url`: one request, without any proxy."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_ATTEMPT_SECONDS)
    try:
        connection.request("GET", _HEALTH_PATH[name])
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
