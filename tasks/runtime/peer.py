"""The connection between two hosts of a job: whole messages, and whether the other one lives."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from dynolab.errors import HostLost

SIGN_SECONDS = 1.0
LOST_SECONDS = 20.0
"""Silence after which a host counts as lost: longer than a machine that swaps stands still."""

_SEND_SECONDS = 5.0
_MESSAGE_BYTES = 2**20
Message = dict[str, Any]


class Peer:
    """The other end; a context manager that hangs up.

    A thread sends a sign of life every second and hears the other end's, so that a cut cable is
    noticed, too, whatever the process is busy with. Messages are JSON objects, one a line. A
    connection that ends, a silence of `LOST_SECONDS` and what is no message make the host lost.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(_SEND_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self.address = str(connection.getpeername()[0])
        self.own_address = str(connection.getsockname()[0])
        self.name = self.address
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._lost: str | None = None
        self._sending, self._closed = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._live, name=f"peer-{self.name}", daemon=True)
        self._thread.start()

    def send(self, **message: Any) -> None:
        """Sends one message; raises HostLost where it cannot."""
        try:
            with self._sending:
                self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise HostLost(self.name, self._lost or "it takes no messages any more") from error

    def poll(self) -> Message | None:
        """The next message, if one has come; raises HostLost after the last of a lost host's."""
        lost = self._lost  # looked at first: what came before it is told before it
        with suppress(Empty):
            return self._messages.get_nowait()
        if lost is not None:
            raise HostLost(self.name, lost)
        return None

    def close(self) -> None:
        """Hangs up."""
        self._closed.set()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def _live(self) -> None:
        received, heard, signed = b"", time.monotonic(), 0.0
        readable = select.poll()  # select(2) knows the first 1024 descriptors alone
        readable.register(self._connection, select.POLLIN)
        try:
            while not self._closed.is_set():
                if time.monotonic() - signed >= SIGN_SECONDS:
                    self.send()
                    signed = time.monotonic()
                if readable.poll(SIGN_SECONDS * 1000 / 4):
                    received = self._take(received + self._read())
                    heard = time.monotonic()
                elif time.monotonic() - heard > LOST_SECONDS:
                    self._lost = f"no sign of life for {LOST_SECONDS:.0f} s"
                    return
        except HostLost as lost:
            self._lost = lost.reason
        except OSError as error:
            self._lost = f"its connection broke: {error.strerror or error}"

    def _read(self) -> bytes:
        try:
            data = self._connection.recv(2**16)
        except ConnectionResetError:
            data = b""
        if not data:
            raise HostLost(self.name, "it closed its connection")
        return data

    def _take(self, received: bytes) -> bytes:
        """Queues the messages that are whole; returns the rest."""
        *lines, rest = received.split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                raise HostLost(self.name, "it sent what is no message")
            if message:  # an empty one is a sign of life
                self._messages.put(message)
        if len(rest) > _MESSAGE_BYTES:
            raise HostLost(self.name, "it sent what is no message")
        return rest
