"""One server of a home: Prefect's or MLflow's, whether it answers, and that it is started again."""

from __future__ import annotations

import http.client
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from dynolab.errors import ServiceFailed
from tasks.runtime.system.processes import (
    Process,
    last_lines,
)

log = logging.getLogger(__name__)

PREFECT, MLFLOW = "prefect", "mlflow"

START_SECONDS = 120.0

STARTS = 3
"""How often a command starts a server that ends by itself."""

_HEALTH_PATH = {PREFECT: "/api/health", MLFLOW: "/health"}

_ATTEMPT_SECONDS = 2.0

LONGEST_ANSWER = 10_000  # bytes


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


def is_healthy(name: str, url: str) -> bool:
    """Whether the server `name` answers at `url`."""
    return answer_of(url, _HEALTH_PATH[name]) is not None


def answer_of(url: str, path: str) -> bytes | None:
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
