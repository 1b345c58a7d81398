"""Connections that bring no request are closed, so that strangers cannot use all of them up."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""What a new connection has until its first request's head is there."""


class PunctualProtocol(H11Protocol):
    """uvicorn's own HTTP, which by itself waits for a first request for ever.

    Later requests on a connection are those of clients that have logged in: the guard closes the
    connections of all others.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the clock."""
        super().connection_made(transport)
        self.loop.call_later(HEAD_SECONDS, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.scope is None and not self.transport.is_closing():
            self.transport.close()
