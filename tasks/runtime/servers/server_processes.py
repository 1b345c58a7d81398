"""Prefect's and MLflow's servers as child processes of the command that needs them.

Flows with no Prefect server would start Prefect's own temporary one, which nobody else can end;
servers started here end with their command, however it ends.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from dynolab.errors import ConfigError, ServiceFailed
from tasks.runtime.servers.postgres_redis import Backing
from tasks.runtime.system.processes import (
    Process,
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
    "MLFLOW_DISABLE_TELEMETRY": "true",  # MLflow knows DO_NOT_TRACK only as "true"
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}


@dataclass(frozen=True)
class Address:
    """Where a server answers (`http://host:port`, its interface for people), and its process."""

    url: str
    pid: int


@dataclass(frozen=True)
class Service:
    """One server; `process` is None where it belongs to another command, which then ends it."""

    name: str
    address: Address
    log: Path
    process: Process | None = None

    def check_alive(self) -> None:
        """Raise ServiceFailed where the server's process has ended."""
        if self.process is not None and self.process.poll() is not None:
            raise self._failed(f"it ended with exit code {self.process.returncode}")

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until the server answers; ServiceFailed where it ends or the time is over."""
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
    """The servers of one command; as a context manager it ends those that the command started."""

    home: Path
    services: tuple[Service, ...]
    clients: Mapping[str, str] = field(default_factory=dict)
    """What else clients need to use the servers: logins, the store."""

    @property
    def addresses(self) -> dict[str, Address]:
        """Name of each server → its address."""
        return {service.name: service.address for service in self.services}

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until every server answers; ServiceFailed where one does not."""
        for service in self.services:
            service.wait_ready(timeout)

    def check_alive(self) -> None:
        """Raise ServiceFailed where a server that was started here has ended."""
        for service in self.services:
            service.check_alive()

    def environment(self) -> dict[str, str]:
        """Variables with which Prefect's and MLflow's clients use these servers.

        To be set before either is imported: Prefect reads its settings at import.
        """
        return {**_QUIET, **self.clients, **client_variables(self.home, self.addresses)}

    def stop(self) -> None:
        """End the servers that were started here; those of other commands stay."""
        started = [service.process for service in self.services if service.process is not None]
        for process in started:
            process.terminate()  # all of them first, so that they end side by side
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
    """Addresses of a home's servers and the login to them, as their clients take them."""
    if not addresses:
        return {}
    token = login_token(home)
    variables: dict[str, str] = {}
    if PREFECT in addresses:
        variables |= {
            "PREFECT_API_URL": f"{addresses[PREFECT].url}/api",
            "PREFECT_HOME": str(home / PREFECT),
            # Not PREFECT_API_AUTH_STRING: most of Prefect's WebSockets open without it.
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
    backing: Backing | None = None,
) -> Services:
    """Start servers on loopback and return at once; `wait_ready` waits for them.

    Their addresses hold from the start: a request made before a server is ready waits for it.

    **Arguments**

    - `home`: keeps their databases (`prefect/prefect.db`, `mlflow/mlflow.db`), MLflow's
      artifacts (`mlflow/artifacts/`) and logs (`logs/<name>.log`).
    - `ports`: name → port; any free one where a name is missing.
    - `standing`: for servers that people use while no command runs.
    - `backing`: what they stand on in place of SQLite and the home's folders.

    **Raises** `ConfigError` where a port is taken; servers started by then are ended.
    """
    home, more = own_folder(home.resolve()), backing.servers if backing else {}
    started = Services(home, (), backing.clients if backing else {})
    try:
        for name in names:
            service = _start(home, name, (ports or {}).get(name, 0), standing, more)
            started = replace(started, services=(*started.services, service))
    except BaseException:
        started.stop()
        raise
    return started


def _start(home: Path, name: str, port: int, standing: bool, more: Mapping[str, str]) -> Service:
    (home / name).mkdir(parents=True, exist_ok=True)
    log = home / "logs" / f"{name}.log"
    try:
        listener = listening_socket(port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        remedy = "another program has this port; stop that program or choose another port"
        raise ConfigError(f"{name}_port", port, remedy) from error
    with listener:
        host, port = listener.getsockname()
        process = start_child(
            "tasks.runtime.servers.serve",
            [name, str(home / name), str(listener.fileno()), *(["standing"] if standing else [])],
            environment={**os.environ, **_QUIET, **more, TOKEN: login_token(home)},
            log=log,
            pass_fds=[listener.fileno()],
        )
    return Service(name, Address(f"http://{host}:{port}", process.pid), log, process)


def is_healthy(name: str, url: str) -> bool:
    """Whether the server `name` answers at `url`; asks once, without any proxy."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_ATTEMPT_SECONDS)
    try:
        connection.request("GET", _HEALTH_PATH[name])
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
