"""Connections to other commands' servers, which must prove first that they are of this home."""

from __future__ import annotations

import errno
import hmac
import logging
import secrets
import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tasks.runtime.servers.service import answer_of
from tasks.runtime.system.secret_files import (
    PROOF_PATH,
    proof,
)

log = logging.getLogger(__name__)

STRANGER = "no server of this home answers at %s: waiting for it; what may be there is sent nothing"


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
