"""One server: whether it answers, is of this home, and is started again when it ends."""

from __future__ import annotations

import errno
import hmac
import http.client
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dynolab.errors import ServiceFailed
from tasks.runtime.system.processes import Process, last_lines
from tasks.runtime.system.secret_files import PROOF_PATH, proof

log = logging.getLogger(__name__)

# The warning where another program has the port of one of the home's servers.
STRANGER = "no server of this home answers at %s: waiting for it; what may be there is sent nothing"

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
    """Starts the server again, at the same address; None: it is not started again."""

    starts: int = 1
    """How often it was started, or was tried to be; `STARTS` at most."""

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
        if self.starts == STARTS:  # else requests would wait for a server that does not come
            self.free_port()
            return
        last = " / ".join(last_lines(self.log, 2))
        log.warning("%s has ended and is started again; its last lines: %s", self.name, last)
        # A full disk, on which its log cannot be opened: that counts as a start, too.
        with suppress(OSError):
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


def is_of_home(token: str, url: str) -> bool:
    """Whether the server at `url` can prove that it has the home's token."""
    question = secrets.token_hex(16)
    answer = answer_of(url, f"{PROOF_PATH}?ask={question}")
    expected = proof(token, "server", f"{urlsplit(url).port} {question}")
    return answer is not None and hmac.compare_digest(answer, expected.encode())


@contextmanager
def only_to_this_home(token: str, urls: Collection[str]) -> Iterator[None]:
    """While the block runs, this process connects to these addresses only if a server of the home
    with this token is there; else the connection is refused.

    Prefect's and MLflow's clients connect through several libraries, by HTTP and by WebSockets;
    what they have in common is Python's socket.
    """
    addresses = {(urlsplit(url).hostname, urlsplit(url).port): url for url in urls}
    # The proof is itself a request to that address, by this thread: it connects unasked.
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
                log.warning(STRANGER, url)
            warned.add(url)
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"no server of this home at {url}")
        connect(self, address)

    socket.socket.connect = connect_if_proved  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        socket.socket.connect = connect  # type: ignore[method-assign]
