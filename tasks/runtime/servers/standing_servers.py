"""Standing servers: a user starts them once, other commands find them in `services.json`."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    suppress,
)
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dynolab.errors import ConfigError
from tasks.runtime.servers.server_processes import (
    ALL,
    MLFLOW,
    PREFECT,
    Address,
    Service,
    Services,
    is_healthy,
    start_services,
)
from tasks.runtime.system.processes import port_in_use
from tasks.runtime.system.secret_files import login_token
from tasks.runtime.track.mlflow_pages import WORKFLOW

DEFAULT_PORTS: Mapping[str, int] = {PREFECT: 4200, MLFLOW: 5000}
Beside = Callable[[Services], AbstractContextManager[Services]]
_LABELS = {PREFECT: "Prefect", MLFLOW: "MLflow"}
_FIRST_PAGES = {MLFLOW: f"#/experiments?{WORKFLOW}"}


def running_services(home: Path) -> dict[str, Address]:
    """The home's standing servers that are alive and answer; name → address."""
    try:
        content = json.loads(_register(home).read_text(encoding="utf-8"))
        listed = {name: Address(str(at["url"]), int(at["pid"])) for name, at in content.items()}
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
    logs = home.resolve() / "logs"
    standing = [Service(n, running[n], logs / f"{n}.log") for n in names if n in running]
    missing = [name for name in names if name not in running]
    free = {name: DEFAULT_PORTS[name] for name in missing if not port_in_use(DEFAULT_PORTS[name])}
    started = start_services(home, missing, ports=free)
    return Services(started.home, (*standing, *started.services))


@contextmanager
def standing_services(
    home: Path,
    *,
    prefect_port: int | None = None,
    mlflow_port: int | None = None,
) -> Iterator[Services]:
    """Start both servers on the usual ports (4200, 5000) or the given ones, wait, register them.

    **Raises** `ConfigError` if the home's servers are already running or a port is taken,
    `ServiceFailed` if a server does not become ready.
    """
    _refuse_second(home)
    ports = {
        PREFECT: DEFAULT_PORTS[PREFECT] if prefect_port is None else prefect_port,
        MLFLOW: DEFAULT_PORTS[MLFLOW] if mlflow_port is None else mlflow_port,
    }
    with start_services(home, ports=ports, standing=True) as services:
        services.wait_ready()
        _write_register(services)
        try:
            yield services
        finally:
            _register(home).unlink(missing_ok=True)


def watch(*started: Services) -> NoReturn:
    """Block until an interruption; **Raises** `ServiceFailed` if a process ends meanwhile."""
    while True:
        for services in started:
            services.check_alive()
        time.sleep(0.5)


def up(
    home: Path,
    announce: Callable[[str], None],
    *,
    prefect_port: int | None = None,
    mlflow_port: int | None = None,
    beside: Beside | None = None,
) -> None:
    """Start both servers, announce login links, serve until Ctrl-C or SIGTERM, end the servers.

    `beside` registers deployments and starts workers.

    **Raises** like `standing_services` and `watch`; returns normally on an interruption.
    """
    with suppress(KeyboardInterrupt), sigterm_as_interrupt(), ExitStack() as stack:
        services = stack.enter_context(
            standing_services(home, prefect_port=prefect_port, mlflow_port=mlflow_port)
        )
        for name, address in services.addresses.items():
            link = f"{address.url}/?token={login_token(home)}{_FIRST_PAGES.get(name, '')}"
            announce(f"{_LABELS[name]:8}{link}")
        workers = stack.enter_context(beside(services)) if beside else Services(home, ())
        watch(services, workers)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Make SIGTERM raise KeyboardInterrupt as Ctrl-C does, so that servers end cleanly."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only it receives signals
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _refuse_second(home: Path) -> None:
    for name, address in running_services(home).items():
        raise ConfigError(
            "home",
            str(home),
            f"its {_LABELS[name]} server is already running at {address.url} (process"
            f" {address.pid}); use it, or end the command that started it",
        )


def _register(home: Path) -> Path:
    return home / "services.json"


def _write_register(services: Services) -> None:
    file = _register(services.home)
    content = {name: {"url": at.url, "pid": at.pid} for name, at in services.addresses.items()}
    part = file.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    part.replace(file)


def _is_alive(pid: int) -> bool:
    """Whether it is a living process of this user; the login is never sent to another user's."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False
