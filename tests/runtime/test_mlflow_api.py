from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from dynolab.errors import ConfigError
from tasks.runtime.track.mlflow_api import MlflowApi, MlflowRejectedError, MlflowUnreachableError


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers every request as the test has set it, and remembers the last headers."""

    status, body, headers_seen = 200, b"{}", {}

    def do_POST(self) -> None:
        type(self).headers_seen = dict(self.headers)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/prefix/"
    server.shutdown()
    thread.join()
    server.server_close()


def answer(status: int, body: bytes) -> None:
    Answers.status, Answers.body = status, body


def test_login_comes_from_the_environment(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(200, b"{}")
    MlflowApi(address).set_status("r", "FAILED")
    assert "Authorization" not in Answers.headers_seen
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "lovelace")
    MlflowApi(address).set_status("r", "FAILED")
    assert Answers.headers_seen["Authorization"] == "Basic YWRhOmxvdmVsYWNl"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b'{"error_code": "INTERNAL_ERROR"}'),
        (503, b"busy"),
        (401, b'{"error_code": "UNAUTHENTICATED"}'),
        (429, b'{"error_code": "REQUEST_LIMIT_EXCEEDED"}'),
        (404, b"<html>another server</html>"),
        (404, b"[]"),
        (200, b"<html>a login page</html>"),
    ],
)
def test_what_may_mend_itself_is_an_outage(address: str, status: int, body: bytes) -> None:
    answer(status, body)
    with pytest.raises(MlflowUnreachableError) as caught:
        MlflowApi(address).set_status("r", "FAILED")
    assert caught.value.answered


def test_what_mlflow_refuses_is_final(address: str) -> None:
    answer(400, b'{"error_code": "INVALID_PARAMETER_VALUE", "message": "no such status"}')
    with pytest.raises(MlflowRejectedError, match="INVALID_PARAMETER_VALUE: no such status"):
        MlflowApi(address).set_status("r", "DONE")


def test_nobody_there_is_an_outage() -> None:
    with pytest.raises(MlflowUnreachableError) as caught:
        MlflowApi("http://127.0.0.1:1").set_status("r", "FAILED")
    assert not caught.value.answered


@pytest.mark.parametrize("uri", ["sqlite:///mlflow.db", "/tmp/mlruns", "http://", "databricks"])
def test_other_addresses_are_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"MLFLOW_TRACKING_URI = .*http://host:port"):
        MlflowApi(uri)
