"""Starts Prefect's and MLflow's servers as child processes of the command that needs them.

Without a Prefect server, a flow would start Prefect's temporary one, which others cannot end.
Servers started here end with their command, even if it is killed. Those of `dynolab up` stand:
other commands find them in the home's `services.json`.

A command keeps the ports of the servers that it started: no other program can take the port of a
server that dies, and the server is started again. The ports of another command's servers may be
taken when that command ends, so each connection to them begins with a question that only a server
of this home can answer (`only_to_this_home`).
"""

from __future__ import annotations

import errno
import hmac
import http.client
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
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
from tasks.runtime.system.secret_files import (
    PROOF_PATH,
    TOKEN,
    login_token,
    own_folder,
    proof,
)
from tasks.runtime.track.mlflow_pages import FIRST_RUNS

log = logging.getLogger(__name__)

PREFECT, MLFLOW = "prefect", "mlflow"
ALL = (PREFECT, MLFLOW)
DEFAULT_PORTS: Mapping[str, int] = {PREFECT: 4200, MLFLOW: 5000}
START_SECONDS = 120.0
STARTS = 3
"""How often a command starts a server that ends by itself."""

POLL_SECONDS = 0.5
_HEALTH_PATH = {PREFECT: "/api/health", MLFLOW: "/health"}
_ATTEMPT_SECONDS = 2.0
LONGEST_ANSWER = 10_000  # bytes
_LABELS = {PREFECT: "Prefect", MLFLOW: "MLflow"}
_FIRST_PAGES = {PREFECT: ("v2/deployments", ""), MLFLOW: ("", FIRST_RUNS)}
"""Server → path and fragment of the page that its link opens."""

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


@dataclass
class Service:
    """One server; `process` is None if another command started it, and ends it."""

    name: str
    url: str
    """`http://host:port`, its UI."""

    pid: int
    log: Path
    process: Process | None = None
    listener: socket.socket | None = field(default=None, compare=False)
    """Keeps the server's port as long as the command lives."""

    start: Callable[[], Process] | None = field(default=None, compare=False)
    """Starts the server again, at the same address; None for a process that is not."""

    starts: int = 1

    @property
    def has_ended(self) -> bool:
        """Whether the process that this command started has ended."""
        return self.process is not None and self.process.poll() is not None

    def check_alive(self) -> None:
        """Raise ServiceFailed if the server's process has ended and is not started again."""
        if self.has_ended and (self.start is None or self.starts == STARTS):
            raise self._failed()

    def start_again(self) -> None:
        """Start a server that has ended; after `STARTS` times its port refuses connections."""
        if not self.has_ended or self.start is None:
            return
        if self.starts == STARTS:
            self.free_port()
            return
        last = " / ".join(last_lines(self.log, 2))
        log.warning("%s has ended and is started again; its last lines: %s", self.name, last)
        with suppress(OSError):  # a full disk, on which its log cannot be opened
            self.process = self.start()
            self.pid = self.process.pid
        self.starts += 1

    def free_port(self) -> None:
        """Let other programs have the server's port."""
        if self.listener is not None:
            self.listener.close()

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until the server answers; ServiceFailed if it ends or after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not is_healthy(self.name, self.url):
            if self.has_ended:
                raise self._failed()
            if time.monotonic() > deadline:
                raise self._failed(f"no answer from {self.url} within {timeout:.0f} s")
            time.sleep(0.05)

    def _failed(self, reason: str = "") -> ServiceFailed:
        if self.process is not None and not reason:
            reason = f"it ended with exit code {self.process.returncode}"
        return ServiceFailed(self.name, [*last_lines(self.log), f"({reason}; log: {self.log})"])


@dataclass(frozen=True)
class Services(AbstractContextManager["Services"]):
    """The servers that one command uses.

    As a context manager, it starts those that die again, lets no request reach another home's
    server, and in the end stops the servers that it started.
    """

    home: Path
    by_name: dict[str, Service]
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
        self._until_end.close()
        started = [service.process for service in self.by_name.values() if service.process]
        for process in started:
            process.send_signal(ending_signal())  # all first, so that they end in parallel
        for process in started:
            stop_group(process)
        for service in self.by_name.values():
            service.free_port()

    def __enter__(self) -> Services:
        others = [service.url for service in self.by_name.values() if service.process is None]
        if others:
            self._until_end.enter_context(only_to_this_home(login_token(self.home), others))
        self._until_end.enter_context(self._started_again())
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextmanager
    def _started_again(self) -> Iterator[None]:
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
    log_file = home / "logs" / f"{name}.log"
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
    host, port = listener.getsockname()

    def start() -> Process:
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


def is_healthy(name: str, url: str) -> bool:
    """Whether the server `name` answers at `url`."""
    return _answer(url, _HEALTH_PATH[name]) is not None


def _answer(url: str, path: str) -> bytes | None:
    """What a server answers to one request without a login; None if it refuses or is not there."""
    # Without any proxy.
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_ATTEMPT_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read(LONGEST_ANSWER) if answer.status == http.client.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def is_of_home(token: str, url: str) -> bool:
    """Whether the server at `url` can prove that it has the home's token."""
    question = secrets.token_hex(16)
    answer = _answer(url, f"{PROOF_PATH}?ask={question}")
    wanted = proof(token, "server", f"{urlsplit(url).port} {question}")
    return answer is not None and hmac.compare_digest(answer, wanted.encode())


@contextmanager
def only_to_this_home(token: str, urls: Collection[str]) -> Iterator[None]:
    """While the block runs, this process connects to these addresses only if a server of the home
    with this token is there; else the connection is refused.

    Prefect's and MLflow's clients connect through several libraries, by HTTP and by WebSockets;
    what they have in common is Python's socket.
    """
    addresses = {(urlsplit(url).hostname, urlsplit(url).port): url for url in urls}
    asking, warned, connect = threading.local(), set[str](), socket.socket.connect

    def connect_if_proved(self: socket.socket, address: Any) -> None:
        url = addresses.get(address) if isinstance(address, tuple) else None
        if url is None or getattr(asking, "now", False):
            connect(self, address)
            return
        asking.now = True
        try:
            proved = is_of_home(token, url)
        finally:
            asking.now = False
        if not proved:
            if url not in warned:
                log.warning(_STRANGER, url)
            warned.add(url)
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"no server of this home at {url}")
        connect(self, address)

    socket.socket.connect = connect_if_proved  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        socket.socket.connect = connect  # type: ignore[method-assign]


_STRANGER = (
    "no server of this home answers at %s: waiting for it; what may be there is sent nothing"
)


def running_services(home: Path) -> dict[str, Service]:
    """The home's standing servers that answer and prove that they are its, by name."""
    logs = home.resolve() / "logs"
    try:
        listed = {
            name: Service(name, str(at["url"]), int(at["pid"]), logs / f"{name}.log")
            for name, at in json.loads(_register(home).read_text(encoding="utf-8")).items()
        }
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return {}  # missing or damaged: treated as no running servers
    running = {}
    for name in listed.keys() & set(ALL):
        service = listed[name]
        if is_of_home(login_token(home), service.url):
            running[name] = service
        elif is_healthy(name, service.url):
            log.warning(_STRANGER, service.url)
    return running


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
            f"its {_LABELS[name]} server is already running at {running.url}; use it, or end the "
            f"command that started it (process {running.pid})",
        )
    with start_services(home, ports=ports, standing=True) as services:
        meanwhile(services)
        services.wait_ready()
        content = {
            name: {"url": service.url, "pid": os.getpid()}
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
    """Block until an interruption; **Raises** `ServiceFailed` if a process ends for good."""
    while True:
        for services in started:
            services.check_alive()
        time.sleep(POLL_SECONDS)


def _register(home: Path) -> Path:
    return home / "services.json"
