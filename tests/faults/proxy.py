"""Between a client and an S3 server: hands requests on, and misbehaves as it is told to."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

CHUNK = 1 << 16


@dataclass(frozen=True)
class Answer:
    """What came back from the server."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


Fault = Callable[["Exchange"], None]
"""What is done with a request in place of handing it on."""


@dataclass
class Proxy:
    """`fault` is what befalls requests that `strikes` chooses, for the first `times` of them."""

    upstream: str
    address: str = ""
    fault: Fault | None = None
    strikes: Callable[[str, str], bool] = lambda method, path: True
    times: int | None = None
    struck: int = 0
    healed: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def breaks(
        self,
        fault: Fault,
        strikes: Callable[[str, str], bool] = lambda method, path: True,
        times: int | None = None,
    ) -> None:
        """From now on the fault befalls requests, by method and path with query."""
        with self._lock:
            self.healed.clear()
            self.fault, self.strikes, self.times, self.struck = fault, strikes, times, 0

    def heals(self) -> None:
        """From now on every request is handed on; those that hang are let go."""
        with self._lock:
            self.fault = None
        self.healed.set()

    def chosen(self, method: str, path: str) -> Fault | None:
        """What befalls a request, if anything does."""
        with self._lock:
            if self.fault is None or not self.strikes(method, path):
                return None
            if self.times is not None and self.struck >= self.times:
                return None
            self.struck += 1
            return self.fault


class Exchange(BaseHTTPRequestHandler):
    """One request; a connection serves one alone, so that each can be broken by itself."""

    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:  # the client has gone
            self.close_connection = True

    def do_any(self) -> None:
        self.close_connection = True
        fault = self.proxy.chosen(self.command, self.path)
        if fault is None:
            self.give(self.ask(self.body()))
        else:
            fault(self)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_any  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def body(self, share: float = 1.0, rate: float | None = None) -> bytes:
        """The request's body, or only its beginning; at so many bytes a second."""
        left, parts = int(int(self.headers.get("Content-Length") or 0) * share), []
        while left and (chunk := self.rfile.read(min(CHUNK, left))):
            parts.append(chunk)
            left -= len(chunk)
            if rate:
                time.sleep(len(chunk) / rate)
        return b"".join(parts)

    def ask(self, body: bytes) -> Answer:
        """What the server says to it."""
        upstream = urlsplit(self.proxy.upstream)
        connection = http.client.HTTPConnection(upstream.hostname or "", upstream.port, timeout=60)
        left_out = ("connection", "expect", "transfer-encoding")
        headers = {n: v for n, v in self.headers.items() if n.lower() not in left_out}
        try:
            connection.request(self.command, self.path, body=body, headers=headers)
            said = connection.getresponse()
            return Answer(said.status, said.getheaders(), said.read())
        finally:
            connection.close()

    def give(self, answer: Answer, share: float = 1.0, rate: float | None = None) -> None:
        """Answers; or only with the beginning of the body that was announced."""
        self.send_response_only(answer.status)
        length = next((v for n, v in answer.headers if n.lower() == "content-length"), None)
        for name, value in answer.headers:
            if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                self.send_header(name, value)
        head = self.command == "HEAD"
        self.send_header("Content-Length", length if head and length else str(len(answer.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        body = b"" if head else answer.body[: int(len(answer.body) * share)]
        for start in range(0, len(body), CHUNK):
            chunk = body[start : start + CHUNK]
            self.wfile.write(chunk)
            if rate:
                time.sleep(len(chunk) / rate)

    def reset(self) -> None:
        """Ends the connection without a farewell: RST in place of FIN."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


def refuses(status: int, code: str) -> Fault:
    """Answers with an error of S3's."""

    def fault(exchange: Exchange) -> None:
        exchange.body()
        text = f"<Error><Code>{code}</Code><Message>on purpose</Message></Error>".encode()
        exchange.give(Answer(status, [("Content-Type", "application/xml")], text))

    return fault


def hangs(exchange: Exchange) -> None:
    """Takes the request and never answers."""
    exchange.body()
    exchange.proxy.healed.wait(120)


def resets_request(exchange: Exchange) -> None:
    """Breaks off in the middle of the request's body."""
    exchange.body(share=0.5)
    exchange.reset()


def loses_answer(exchange: Exchange) -> None:
    """The server does what it is asked to, and nobody hears of it."""
    exchange.ask(exchange.body())
    exchange.reset()


def truncates(exchange: Exchange) -> None:
    """Sends half of the body that its header announces."""
    exchange.give(exchange.ask(exchange.body()), share=0.5)


def shortens(exchange: Exchange) -> None:
    """Sends half of the body as if it were all."""
    said = exchange.ask(exchange.body())
    exchange.give(Answer(said.status, said.headers, said.body[: len(said.body) // 2]))


def garbles(exchange: Exchange) -> None:
    """Turns one bit of the body."""
    said = exchange.ask(exchange.body())
    middle = len(said.body) // 2
    body = said.body[:middle] + bytes([said.body[middle] ^ 1]) + said.body[middle + 1 :]
    exchange.give(Answer(said.status, said.headers, body))


def slows(rate: float) -> Fault:
    """Hands on so many bytes a second, both ways."""

    def fault(exchange: Exchange) -> None:
        exchange.give(exchange.ask(exchange.body(rate=rate)), rate=rate)

    return fault


@contextmanager
def proxied(upstream: str) -> Iterator[Proxy]:
    """A proxy before the server of that address."""
    proxy = Proxy(upstream)
    handler = type("Handler", (Exchange,), {"proxy": proxy})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    proxy.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.heals()
        server.shutdown()
        server.server_close()
        thread.join()
