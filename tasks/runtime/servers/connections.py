"""Refuses connections of other users of this machine, and closes idle ones.

A browser sends its cookies to every port of a host. Another user who serves a page on one of them,
or takes a server's port while the server is down, receives the login cookie. It is useless to that
user: the kernel shows which user's program is at the other end of a connection within the machine.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""Time limit for the head of a new connection's first request."""

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_MAPPED = bytes(10) + b"\xff\xff"  # ::ffff:0:0/96: IPv4 over an IPv6 socket
_NOBODY = -1
_REFUSAL = (
    b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n"
    b"This server answers the programs of the user who started it, and root's.\n"
)


class OwnersProtocol(H11Protocol):
    """uvicorn's HTTP protocol, only for programs of this process's user and of root.

    uvicorn itself waits for a first request for ever. Later requests need no time limit: the guard
    closes the connections of clients that have not logged in.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Check the client's user and start the time limit."""
        super().connection_made(transport)
        here, there = (transport.get_extra_info(name) for name in ("sockname", "peername"))
        if peer_user(here, there) in (None, 0, os.geteuid()):
            self.loop.call_later(HEAD_SECONDS, self._close_if_silent)
        else:
            transport.write(_REFUSAL)
            transport.close()

    def _close_if_silent(self) -> None:
        if self.scope is None and not self.transport.is_closing():
            self.transport.close()


def peer_user(here: tuple[str, int], there: tuple[str, int]) -> int | None:
    """The user whose program is at the other end of an incoming IPv4 connection.

    **Arguments:** `here`, `there`: its ends, as (address, port).

    **Returns:** The user id; -1 if the other end is on this machine but its program has closed it;
    None if it is on another machine or in another container, or if the system has no
    /proc/net/tcp (proc_pid_net(5)).
    """
    users: dict[tuple[str, str], int] = {}
    for table in _TABLES:
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                is_closed = fields[9] == "0"  # it has no inode
                users[fields[1], fields[2]] = _NOBODY if is_closed else int(fields[7])
    if (_entry(here), _entry(there)) not in users:
        return None
    for mapped in (False, True):
        ends = _entry(there, mapped=mapped), _entry(here, mapped=mapped)
        if ends in users:
            return users[ends]
    return _NOBODY if here[0].startswith("127.") else None


def _entry(end: tuple[str, int], *, mapped: bool = False) -> str:
    """An address and port in the format of the tables."""
    address = (_MAPPED if mapped else b"") + socket.inet_aton(end[0])
    words = (address[start : start + 4] for start in range(0, len(address), 4))
    return (
        "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{end[1]:04X}"
    )
