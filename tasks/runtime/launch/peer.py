"""Authenticated messages and heartbeats between two hosts of a job.

Both ends share a key, that of their home. Each sends a nonce; every later line begins with an
HMAC-SHA256 (RFC 2104) over its content, its number and both nonces, so that a line which somebody
without the key sends, repeats or changes is never parsed.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import select
import socket
import threading
import time
from contextlib import suppress
from hashlib import sha256
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Literal

from dynolab.errors import HostLost

SIGN_SECONDS = 1.0
LOST_SECONDS = 20.0
"""Silence after which a host counts as lost: longer than a swapping machine may freeze."""

MEET_SECONDS = 10.0
"""How long the other end has to prove that it has the key."""

STRANGER = "it did not prove that it has the key of this home"

_SEND_SECONDS = 5.0
_MESSAGE_BYTES = 2**20
_STRANGER_BYTES = 2**12
_NONCE_BYTES = 32
_NONCE = re.compile(rb"[0-9a-f]{%d}" % (2 * _NONCE_BYTES))
_PURPOSE = b"dynolab hosts\0"  # the same key signs resume states
Message = dict[str, Any]
Role = Literal["starts", "joins"]
"""Part of the HMAC, so that nobody can send an end its own lines back."""

_OTHER: dict[Role, Role] = {"starts": "joins", "joins": "starts"}


class _Seal:
    """HMACs of the lines that one end sends, in order."""

    def __init__(self, key: bytes, sender: Role, nonce: bytes, others_nonce: bytes) -> None:
        content = _PURPOSE + sender.encode() + nonce + others_nonce
        self._key, self._number = hmac.digest(key, content, sha256), 0

    def next(self, content: bytes) -> bytes:
        """HMAC of the next line, in hex."""
        self._number += 1
        numbered = self._number.to_bytes(8, "big") + content
        return hmac.new(self._key, numbered, sha256).hexdigest().encode()


class Peer:
    """A connection to another host; a context manager that hangs up.

    A thread sends a heartbeat every second and watches for the other end's, so that even a cut
    cable is noticed, whatever the process is busy with. Messages are JSON objects, one per line.
    The host counts as lost if the connection ends, after `LOST_SECONDS` of silence, after an
    invalid message, or if it does not prove within `MEET_SECONDS` that it has the key.
    """

    def __init__(self, connection: socket.socket, key: bytes, role: Role) -> None:
        """**Arguments:** `role`: of this end; the other end must have the other role."""
        connection.settimeout(_SEND_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._key, self._role = connection, key, role
        self.address = str(connection.getpeername()[0])
        self.own_address = str(connection.getsockname()[0])
        self.name = self.address
        self.has_key = False  # whether the other end has proved that it has the key
        self._nonce = secrets.token_hex(_NONCE_BYTES).encode()
        self._sealed: _Seal | None = None
        self._expected: _Seal | None = None
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._lost: str | None = None
        self._sending, self._closed = threading.Lock(), threading.Event()
        self._can_send = threading.Event()
        self._thread = threading.Thread(target=self._live, name=f"peer-{self.name}", daemon=True)
        self._thread.start()

    def send(self, **message: Any) -> None:
        """Send one message, after the other end's nonce has arrived; raises HostLost."""
        self._can_send.wait()
        content = json.dumps(message).encode()
        try:
            with self._sending:
                if self._sealed is None or self._lost is not None:
                    raise HostLost(self.name, self._lost or STRANGER)
                self._connection.sendall(self._sealed.next(content) + b" " + content + b"\n")
        except OSError as error:
            raise HostLost(self.name, self._lost or "it no longer accepts messages") from error

    def poll(self) -> Message | None:
        """The next message, or None; raises HostLost after a lost host's last message."""
        lost = self._lost  # read first, so that earlier messages are returned before it is raised
        with suppress(Empty):
            return self._messages.get_nowait()
        if lost is not None:
            raise HostLost(self.name, lost)
        return None

    def close(self) -> None:
        """Hang up."""
        self._closed.set()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _live(self) -> None:
        try:
            self._receive_and_send_heartbeats()
        except HostLost as lost:
            reason = lost.reason
        except OSError as error:
            reason = f"its connection broke: {error.strerror or error}"
        else:
            reason = "this end hung up"
        self._lost = reason if self.has_key else STRANGER
        self._can_send.set()

    def _receive_and_send_heartbeats(self) -> None:
        """Run until this end hangs up; raises HostLost or OSError if the other end is lost."""
        self._connection.sendall(self._nonce + b"\n")
        received, last_sent, began = b"", 0.0, time.monotonic()
        last_received = began
        readable = select.poll()  # select(2) handles only descriptors below 1024
        readable.register(self._connection, select.POLLIN)
        while not self._closed.is_set():
            now = time.monotonic()
            if self._sealed is not None and now - last_sent >= SIGN_SECONDS:
                self.send()
                last_sent = now
            if not self.has_key and now - began > MEET_SECONDS:
                raise HostLost(self.name, STRANGER)
            if readable.poll(SIGN_SECONDS * 1000 / 4):
                received = self._handle_lines(received + self._read())
                last_received = time.monotonic()
            elif now - last_received > LOST_SECONDS:
                raise HostLost(self.name, f"no sign of life for {LOST_SECONDS:.0f} s")

    def _read(self) -> bytes:
        try:
            data = self._connection.recv(2**16)
        except ConnectionResetError:
            data = b""
        if not data:
            raise HostLost(self.name, "it closed its connection")
        return data

    def _handle_lines(self, received: bytes) -> bytes:
        """Handle the complete lines; returns the rest."""
        *lines, rest = received.split(b"\n")
        for line in lines:
            if self._expected is None:
                self._accept_nonce(line)
            else:
                self._queue_message(line, self._expected)
        if len(rest) > (_MESSAGE_BYTES if self.has_key else _STRANGER_BYTES):
            raise HostLost(self.name, "it sent an invalid message")
        return rest

    def _accept_nonce(self, nonce: bytes) -> None:
        if not _NONCE.fullmatch(nonce):
            raise HostLost(self.name, STRANGER)
        self._expected = _Seal(self._key, _OTHER[self._role], nonce, self._nonce)
        self._sealed = _Seal(self._key, self._role, self._nonce, nonce)
        self._can_send.set()

    def _queue_message(self, line: bytes, expected: _Seal) -> None:
        """Check a line's HMAC and queue its message."""
        seal, _, content = line.partition(b" ")
        if not hmac.compare_digest(seal, expected.next(content)):
            raise HostLost(self.name, "it sent a line without the key of this home")
        self.has_key = True
        try:
            message = json.loads(content)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise HostLost(self.name, "it sent an invalid message")
        if message:  # an empty one is a heartbeat
            self._messages.put(message)
