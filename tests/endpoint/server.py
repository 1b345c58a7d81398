"""A server that speaks the chat-completions protocol, and misbehaves as it is told to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-secret-of-the-tests-0123456789"

Said = tuple[int, dict[str, str], bytes] | None
"""Status, headers and body; None: nothing ever comes."""


@dataclass
class Seen:
    """A request as the server got it.

    `place`: how many requests came before; `number`: how many of these with the same text.
    """

    text: str
    body: dict[str, Any]
    key: str
    time: float
    place: int
    number: int


@dataclass
class ChatServer:
    """`answer` says what comes for a request; by default its text in capital letters."""

    address: str = ""
    answer: Callable[[Seen], Said] = lambda seen: good(seen.text.upper())
    seen: list[Seen] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def texts(self) -> list[str]:
        return [request.text for request in self.seen]


def good(text: Any, finish: str = "stop", **more: str) -> Said:
    """A completion; `more`: other fields of its message."""
    message = {"role": "assistant", "content": text, **more}
    choice = {"index": 0, "finish_reason": finish, "message": message}
    return said(
        200,
        {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]},
    )


def said(status: int, body: Any, **headers: str) -> Said:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"Content-Type": "application/json"} | named, json.dumps(body).encode()


def html(status: int = 200) -> Said:
    return status, {"Content-Type": "text/html"}, b"<html><body>Welcome to the proxy</body></html>"


def trouble(status: int, message: str = "no", code: str | None = None) -> Said:
    """A refusal, which openai's client may repeat at once."""
    return said(status, {"error": {"message": message, "code": code}}, Retry_After_Ms="1")


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    state = ChatServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = body["messages"][-1]["content"]
            with state.lock:
                seen = Seen(
                    text,
                    body,
                    self.headers["Authorization"],
                    time.monotonic(),
                    len(state.seen),
                    state.texts.count(text),
                )
                state.seen.append(seen)
            known = self.path.endswith("/chat/completions")
            response = state.answer(seen) if known else html(404)
            if response is None:
                state.ended.wait(30)
                self.close_connection = True
                return
            status, headers, content = response
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.address = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.ended.set()
        server.shutdown()
        server.server_close()
