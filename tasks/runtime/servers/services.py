"""Starts Prefect's and MLflow's servers as child processes of the command that needs them.

Without a Prefect server, a flow would start Prefect's temporary one, which others cannot end.
Servers started here end with their command, even if it is killed. Those of `dynolab up` stand:
other commands find them in the home's `services.json` (`standing`).

A command keeps the ports of the servers that it started: no other program can take the port of a
server that dies, and the server is started again. The ports of another command's servers may be
taken when that command ends, so each connection to them begins with a question that only a server
of this home can answer (`service.only_to_this_home`).
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dynolab.errors import ConfigError
from tasks.runtime.servers.service import MLFLOW, PREFECT, START_SECONDS, Service, only_to_this_home
from tasks.runtime.system.processes import (
    Process,
    ending_signal,
    listening_socket,
    start_child,
    stop_group,
)
from tasks.runtime.system.secret_files import TOKEN, login_token, own_folder

ALL = (PREFECT, MLFLOW)

POLL_SECONDS = 0.5

PATIENCE = {
    # A run waits eight minutes for a restarting server, which answers 500 while its database is
    # down.
    "PREFECT_CLIENT_MAX_RETRIES": "8",
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",
}
"""Environment of Prefect's clients in flow runs."""

_QUIET = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # MLflow reads only "true" in DO_NOT_TRACK
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}


@dataclass(frozen=True)
class Services(AbstractContextManager["Services"]):
    """The servers that one command uses.

    As a context manager, it starts those that die again, lets no request reach another home's
    server, and in the end stops the servers that it started.
    """

    home: Path
    by_name: dict[str, Service]
    # What is undone when the block ends: the check of connections, the thread that starts servers.
    _until_end: ExitStack = field(default_factory=ExitStack, compare=False)

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
        self._until_end.close()  # first, or servers would be started again
        started = [service.process for service in self.by_name.values() if service.process]
        for process in started:
            process.send_signal(ending_signal())  # all first, so that they end in parallel
        for process in started:
            stop_group(process)
        for service in self.by_name.values():
            service.free_port()

    def __enter__(self) -> Services:
        others_urls = [service.url for service in self.by_name.values() if service.process is None]
        if others_urls:
            self._until_end.enter_context(only_to_this_home(login_token(self.home), others_urls))
        self._until_end.enter_context(self._start_dead_again())
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextmanager
    def _start_dead_again(self) -> Iterator[None]:
        """While the block runs, servers started here that end are started again."""
        ending = threading.Event()

        def look_after() -> None:
            while not ending.wait(POLL_SECONDS):
                for service in self.by_name.values():
                    service.start_again()

        keeper = threading.Thread(target=look_after, name="dynolab-servers", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            ending.set()
            keeper.join()


def client_variables(home: Path, services: Mapping[str, Service]) -> dict[str, str]:
    """Environment variables with the servers' addresses and login, for their clients."""
    if not services:
        return {}
    token = login_token(home)
    variables: dict[str, str] = {}
    if PREFECT in services:
        variables |= {
            "PREFECT_API_URL": f"{services[PREFECT].url}/api",
            "PREFECT_HOME": str(home / PREFECT),
            # Not PREFECT_API_AUTH_STRING: most of Prefect's WebSockets do not send it.
            "PREFECT_CLIENT_CUSTOM_HEADERS": json.dumps({"Authorization": f"Bearer {token}"}),
        }
    if MLFLOW in services:
        variables |= {
            "MLFLOW_TRACKING_URI": services[MLFLOW].url,
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


def listener_of(name: str, port: int) -> socket.socket:
    """A server's listening socket. **Raises** `ConfigError` if another program has the port."""
    try:
        return listening_socket(port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise ConfigError(
            f"{name}_port",
            port,
            f"another program uses this port; stop it, or give another with --{name}-port",
        ) from error


def _start(home: Path, name: str, port: int, standing: bool) -> Service:
    (home / name).mkdir(parents=True, exist_ok=True)
    log_file = home / "logs" / f"{name}.log"
    listener = listener_of(name, port)
    host, port = listener.getsockname()

    def start() -> Process:  # called again if the server ends: the socket stays open here
        return start_child(
            "tasks.runtime.servers.serve",
            [name, str(home / name), str(listener.fileno()), *(["standing"] if standing else [])],
            environment={**os.environ, **_QUIET, TOKEN: login_token(home)},
            log=log_file,
            pass_fds=[listener.fileno()],
        )

    try:
        process = start()
    except BaseException:
        listener.close()
        raise
    url = f"http://{host}:{port}"
    return Service(name, url, process.pid, log_file, process, listener, start)
