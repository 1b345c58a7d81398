"""The servers of `dynolab up`, which stand while other commands come and go."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from dynolab.aside import write_text_aside
from dynolab.errors import ConfigError
from tasks.runtime.servers.service import MLFLOW, PREFECT, STRANGER, Service, is_healthy, is_of_home
from tasks.runtime.servers.services import ALL, POLL_SECONDS, Services, start_services
from tasks.runtime.system.processes import port_in_use
from tasks.runtime.system.secret_files import login_token
from tasks.runtime.track.mlflow_pages import FIRST_RUNS

log = logging.getLogger(__name__)

DEFAULT_PORTS: Mapping[str, int] = {PREFECT: 4200, MLFLOW: 5000}

_LABELS = {PREFECT: "Prefect", MLFLOW: "MLflow"}

_FIRST_PAGES = {PREFECT: ("v2/deployments", ""), MLFLOW: ("", FIRST_RUNS)}
"""Server → path and fragment of the page that its link opens."""


def running_services(home: Path) -> dict[str, Service]:
    """The home's standing servers that answer and prove that they are its, by name."""
    logs = home.resolve() / "logs"
    try:
        listed = {
            name: Service(name, str(entry["url"]), int(entry["pid"]), logs / f"{name}.log")
            for name, entry in json.loads(_register(home).read_text(encoding="utf-8")).items()
        }
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return {}  # missing or damaged: treated as no running servers
    # The file may be of servers that ended, or whose ports other programs have now.
    running = {}
    for name in listed.keys() & set(ALL):  # of this version's servers
        service = listed[name]
        if is_of_home(login_token(home), service.url):
            running[name] = service
        elif is_healthy(name, service.url):
            log.warning(STRANGER, service.url)
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
    free_ports = {
        name: DEFAULT_PORTS[name] for name in missing if not port_in_use(DEFAULT_PORTS[name])
    }
    started = start_services(home, missing, ports=free_ports)
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
    for name, running in running_services(home).items():  # the first of them, if there is one
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
        write_text_aside(file, json.dumps(content, indent=2) + "\n")
        try:
            yield services
        finally:
            file.unlink(missing_ok=True)


def login_links(services: Services) -> list[str]:
    """A line for each server: its name, and the link that logs a browser in."""
    token = login_token(services.home)
    # The token stands between path and fragment: /path?token=…#fragment.
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
