"""Starts Prefect's and MLflow's servers as child processes of the command that needs them.

Without a Prefect server, a flow would start Prefect's temporary one, which others cannot end.
Servers started here end with their command, even if it is killed. Those of `dynolab up` stand:
other commands find them in the home's `services.json`.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from dynolab.errors import ConfigError, ServiceFailed
from tasks.runtime.system.processes import (
    Process,
    ending_signal,
    last_lines,
    listening_socket,
    port_in_use,
    start_child,
    stop_group,
)
from tasks.runtime.system.secret_files import TOKEN, login_token, own_folder
from tasks.runtime.track.mlflow_pages import FIRST_RUNS

PREFECT, MLFLOW = "prefect", "mlflow"
ALL = (PREFECT, MLFLOW)
DEFAULT_PORTS: Mapping[str, int] = {PREFECT: 4200, MLFLOW: 5000}
START_SECONDS = 120.0
_HEALTH_PATH = {PREFECT: "/api/health", MLFLOW: "/health"}
_ATTEMPT_SECONDS = 2.0
_LABELS = {PREFECT: "Prefect", MLFLOW: "MLflow"}
_FIRST_PAGES = {PREFECT: ("v2/deployments", ""), MLFLOW: ("", FIRST_RUNS)}
"""Server → path and fragment of the page that its link opens."""

_QUIET = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # MLflow reads only "true" in DO_NOT_TRACK
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}


@dataclass(frozen=True)
class Service:
    """One server; `process` is None if another command started it, and ends it."""

    name: str
    url: str
    """`http://host:port`, its UI."""

    pid: int
    log: Path
    process: Process | None = None

    def check_alive(self) -> None:
        """Raise ServiceFailed if the server's process has ended."""
        if self.process is not None and self.process.poll() is not None:
            raise self._failed(f"it ended with exit code {self.process.returncode}")

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until the server answers; ServiceFailed if it ends or after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not is_healthy(self.name, self.url):
            self.check_alive()
            if time.monotonic() > deadline:
                raise self._failed(f"no answer from {self.url} within {timeout:.0f} s")
            time.sleep(0.05)

    def _failed(self, reason: str) -> ServiceFailed:
        return ServiceFailed(self.name, [*last_lines(self.log), f"({reason}; log: {self.log})"])


@dataclass(frozen=True)
class Services(AbstractContextManager["Services"]):
    """The servers that one command uses; a context manager that ends those it started."""

    home: Path
    by_name: dict[str, Service]

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until every server answers; ServiceFailed if one does not."""
        for service in self.by_name.values():
            service.wait_ready(timeout)

    def check_alive(self) -> None:
        """Raise ServiceFailed if a server started here has ended."""
        for service in self.by_name.values():
            service.check_alive()

    def environment(self) -> dict[str, str]:
        """Environment variables for Prefect's and MLflow's clients to use these servers.

        Set them before importing either: Prefect reads its settings at import.
        """
        return {**_QUIET, **client_variables(self.home, self.by_name)}

    def log_in(self) -> None:
        """Set MLflow's login where its client reads it: in the environment, which ranks lack."""
        variables = self.environment()
        for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
            os.environ[name] = variables[name]

    def stop(self) -> None:
        """End the servers started here, not those of other commands."""
        started = [service.process for service in self.by_name.values() if service.process]
        for process in started:
            process.send_signal(ending_signal())  # all first, so that they end in parallel
        for process in started:
            stop_group(process)

    def __exit__(self, *_: object) -> None:
        self.stop()


def client_variables(home: Path, addresses: Mapping[str, Service]) -> dict[str, str]:
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
    started = Services(home, {})
    try:
        for name in names:
            started.by_name[name] = _start(home, name, (ports or {}).get(name, 0), standing)
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
        raise ConfigError(
            f"{name}_port",
            port,
            f"another program uses this port; stop it, or give another with --{name}-port",
        ) from error
    with listener:
        host, port = listener.getsockname()
        process = start_child(
            "tasks.runtime.servers.serve",
            [name, str(home / name), str(listener.fileno()), *(["standing"] if standing else [])],
            environment={**os.environ, **_QUIET, TOKEN: login_token(home)},
            log=log,
            pass_fds=[listener.fileno()],
        )
    return Service(name, f"http://{host}:{port}", process.pid, log, process)


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


def running_services(home: Path) -> dict[str, Service]:
    """The home's standing servers that are alive and answer, by name."""
    logs = home.resolve() / "logs"
    try:
        listed = {
            name: Service(name, str(at["url"]), int(at["pid"]), logs / f"{name}.log")
            for name, at in json.loads(_register(home).read_text(encoding="utf-8")).items()
        }
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return {}  # missing or damaged: treated as no running servers
    return {
        name: at
        for name, at in listed.items()
        if name in ALL and _is_alive(at.pid) and is_healthy(name, at.url)
    }


def use_services(home: Path, names: Sequence[str] = ALL) -> Services:
    """The home's running standing servers; starts those of `names` that are not running.

    New servers take the usual ports if they are free, so that links from this command later open
    the standing servers. Returns at once, like `start_services`; as a context manager, the result
    ends the servers started here.
    """
    running = running_services(home)
    standing = {name: running[name] for name in names if name in running}
    missing = [name for name in names if name not in running]
    free = {name: DEFAULT_PORTS[name] for name in missing if not port_in_use(DEFAULT_PORTS[name])}
    started = start_services(home, missing, ports=free)
    return Services(started.home, standing | started.by_name)


@contextmanager
def standing_services(
    home: Path,
    ports: Mapping[str, int] = DEFAULT_PORTS,
    meanwhile: Callable[[Services], None] = lambda _: None,
) -> Iterator[Services]:
    """Start both servers on these ports, wait until they answer, register them.

    **Arguments:** `meanwhile`: is called with the started servers before the wait.

    **Raises** `ConfigError` if the home's servers are already running or a port is taken,
    `ServiceFailed` if a server does not become ready.
    """
    for name, running in running_services(home).items():
        raise ConfigError(
            "home",
            str(home),
            f"its {_LABELS[name]} server is already running at {running.url} (process"
            f" {running.pid}); use it, or end the command that started it",
        )
    with start_services(home, ports=ports, standing=True) as services:
        meanwhile(services)
        services.wait_ready()
        content = {
            name: {"url": service.url, "pid": service.pid}
            for name, service in services.by_name.items()
        }
        file = _register(services.home)
        part = file.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        part.replace(file)
        try:
            yield services
        finally:
            file.unlink(missing_ok=True)


def login_links(services: Services) -> list[str]:
    """A line for each server: its name, and the link that logs a browser in."""
    token = login_token(services.home)
    return [
        f"{_LABELS[name]:8}{service.url}/{f'?token={token}'.join(_FIRST_PAGES[name])}"
        for name, service in services.by_name.items()
    ]


def watch(*started: Services) -> NoReturn:
    """Block until an interruption; **Raises** `ServiceFailed` if a process ends meanwhile."""
    while True:
        for services in started:
            services.check_alive()
        time.sleep(0.5)


def _register(home: Path) -> Path:
    return home / "services.json"


def _is_alive(pid: int) -> bool:
    """Whether it is a living process of this user; the login is never sent to another user's."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False
