"""Other users, and strangers that say nothing or half of something, lose their connection."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from tasks.runtime.servers import connections
from tasks.runtime.servers.connections import OwnersProtocol, peer_user
from tasks.runtime.servers.guard import Guard
from tasks.runtime.system.processes import listening_socket
from tests.platform.doors import NOBODY, PYTHON
from tests.runtime.test_guard import TOKEN, application

PATIENCE = 0.5


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A guarded server that waits half a second for a request."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", PATIENCE)
    guard = Guard(application, TOKEN, ("127.0.0.1",), ("/health",))
    config = uvicorn.Config(guard, http=OwnersProtocol, lifespan="off", log_level="critical")
    server, listener = uvicorn.Server(config), listening_socket()
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    serving.start()
    yield int(listener.getsockname()[1])
    server.should_exit = True
    serving.join()


def said(port: int, words: bytes) -> bytes:
    """All that the server says until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(words)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def head(path: str, *more: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *more, "", ""]).encode()


@pytest.mark.parametrize("words", [b"", b"G", b"GET / HTTP/1.1\r\nHost: 127"])
def test_a_connection_without_a_request_is_closed(port: int, words: bytes) -> None:
    assert said(port, words) == b""


@pytest.mark.parametrize(("path", "status"), [("/", b"401"), ("/health", b"200")])
def test_who_is_not_logged_in_keeps_no_connection(port: int, path: str, status: bytes) -> None:
    answer = said(port, head(path) + b"GET / HT")
    assert answer.split(b" ")[1] == status and b"connection: close" in answer


def test_an_owner_keeps_the_connection_and_may_be_slow(port: int) -> None:
    request = head("/", f"Authorization: Bearer {TOKEN}")
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for _ in range(2):
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):  # the end of what is sent in chunks
                answer += connection.recv(4096)
            assert b" 200 " in answer and b"connection: close" not in answer
            time.sleep(2 * PATIENCE)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("family", "address"), [("INET", "127.0.0.1"), ("INET6", "::ffff:127.0.0.1")]
)
@pytest.mark.parametrize(("end", "is_told"), [("print(talker.recv(4096))", True), ("", False)])
def test_another_user_is_refused_even_with_the_owners_login(
    port: int, family: str, address: str, end: str, is_told: bool
) -> None:
    request = head("/", f"Authorization: Bearer {TOKEN}")
    program = (
        f"import socket; talker = socket.socket(socket.AF_{family});"
        f"talker.connect(('{address}', {port})); talker.sendall({request!r}); {end}"
    )
    ran = subprocess.run([*NOBODY, PYTHON, "-c", program], capture_output=True, text=True, cwd="/")
    assert ran.returncode == 0, ran.stderr
    assert ("403 Forbidden" in ran.stdout) is is_told
    assert "secret" not in ran.stdout


def test_it_is_told_who_is_at_the_other_end() -> None:
    with listening_socket() as listener:
        for family, address in (
            (socket.AF_INET, "127.0.0.1"),
            (socket.AF_INET6, "::ffff:127.0.0.1"),
        ):
            with socket.socket(family) as client:
                client.connect((address, listener.getsockname()[1]))
                accepted, there = listener.accept()
                with accepted:
                    here = accepted.getsockname()
                    assert peer_user(here, there) == os.geteuid()
                    client.close()
                    assert peer_user(here, there) == -1, "it may have been anybody's"
                    assert peer_user(here, ("192.0.2.1", 1)) is None
