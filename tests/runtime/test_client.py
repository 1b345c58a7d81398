from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator

import pytest
from mlflow.entities import RunTag
from mlflow.exceptions import MlflowException

from tasks.runtime.track.sender import is_refusal
from tasks.runtime.track.tracking import connect


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers every request as the test has set it."""

    status, body = 200, b"{}"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/prefix/"
        server.shutdown()


REFUSAL = b'{"error_code": "INVALID_PARAMETER_VALUE", "message": "no such status"}'


@pytest.mark.parametrize(
    ("status", "body", "is_final", "message"),
    [
        (500, b'{"error_code": "INTERNAL_ERROR"}', False, None),
        (503, b"busy", False, None),
        (401, b'{"error_code": "UNAUTHENTICATED"}', False, None),
        (429, b'{"error_code": "REQUEST_LIMIT_EXCEEDED"}', False, None),
        (404, b"<html>another server</html>", False, None),
        (404, b"[]", False, None),
        (200, b"<html>a login page</html>", False, None),
        (400, REFUSAL, True, "INVALID_PARAMETER_VALUE: no such status"),
    ],
)
def test_what_may_mend_itself_is_an_outage_and_what_mlflow_refuses_is_final(
    address: str, status: int, body: bytes, is_final: bool, message: str | None
) -> None:
    Answers.status, Answers.body = status, body
    with pytest.raises(MlflowException, match=message) as caught:
        connect(address).log_batch("r", tags=[RunTag("key", "value")])
    assert is_refusal(caught.value) is is_final


def test_nobody_there_is_an_outage_and_known_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(MlflowException) as caught:
        connect("http://127.0.0.1:1").log_batch("r", tags=[RunTag("key", "value")])
    assert time.monotonic() - began < 5
    assert not is_refusal(caught.value)
