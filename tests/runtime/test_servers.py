"""Prefect's and MLflow's real servers: they start, answer, keep their data at home, and end."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener

import httpx
import pytest
import requests
import uvicorn
from starlette.responses import PlainTextResponse

from dynolab.errors import ConfigError, ServiceFailed
from tasks.runtime.open_platform import open_platform
from tasks.runtime.servers import new_homes, services as services_module
from tasks.runtime.servers.guard import Guard
from tasks.runtime.servers.service import MLFLOW, PREFECT, STARTS, Service
from tasks.runtime.servers.services import Services, start_services
from tasks.runtime.servers.standing import running_services, standing_services, use_services
from tasks.runtime.system.processes import listening_socket, port_in_use, start_child, stop_group
from tasks.runtime.system.secret_files import PROOF_PATH, login_token
from tests.flows.lab import until

ROOT = Path(__file__).resolve().parents[2]
UP = """
import sys, pathlib
from contextlib import suppress
from tasks.runtime.launch.notice import sigterm_as_interrupt
from tasks.runtime.servers.service import *
from tasks.runtime.servers.standing import *
with (
    suppress(KeyboardInterrupt),
    sigterm_as_interrupt(),
    standing_services(pathlib.Path(sys.argv[1]), {PREFECT: 0, MLFLOW: 0}) as services,
):
    print(*login_links(services), sep="\\n", flush=True)
    watch(services)
"""


def _gone(address: Service) -> bool:
    port = int(address.url.rpartition(":")[2])
    return not Path(f"/proc/{address.pid}").exists() and not port_in_use(port)


def _program(code: str, home: Path) -> subprocess.Popen[str]:
    """Another command on the home, under way."""
    return subprocess.Popen(
        [sys.executable, "-c", code, str(home)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.services
def test_standing_servers_serve_until_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = _program(UP, tmp_path)
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline(), process.stdout.readline()]
        running = running_services(tmp_path)
        assert set(running) == {PREFECT, MLFLOW}
        query = f"/?token={login_token(tmp_path)}"
        listed = query.replace("/?", "/v2/deployments?")
        assert lines[0].split() == ["Prefect", running[PREFECT].url + listed]
        runs = "#/experiments/1/runs?viewStateShareKey=runs&workflowType=machine_learning"
        assert lines[1].split() == ["MLflow", running[MLFLOW].url + query + runs]
        pages = {PREFECT: "/api/admin/version", MLFLOW: "/version"}
        for name, address in running.items():
            _its_link_logs_a_browser_in(address.url + query, address.url + pages[name])
        _its_link_logs_a_browser_in(lines[0].split()[1], running[PREFECT].url + pages[PREFECT])
        assert (tmp_path / "prefect" / new_homes.block_types()).exists()
        # Another command knows the home, and nothing else of its servers.
        monkeypatch.setenv("DYNOLAB_HOME", str(tmp_path))
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "DYNOLAB_STORE"):
            monkeypatch.delenv(name, raising=False)
        (tmp_path / "note.txt").write_text("hello")
        with open_platform(study="another", project="another", tags={}, params={}) as platform:
            run = platform.tracking.start_run("run", tags={}, params={})
            run.log_artifact(tmp_path / "note.txt", "")
            run.finish("FINISHED")
            assert platform.tracking.send_pending(30) == 0
        assert list((tmp_path / "mlflow" / "artifacts").rglob("note.txt"))
        assert (tmp_path / "mlflow" / "mlflow.db").stat().st_size > 0

        with pytest.raises(ConfigError, match="is already running at"), standing_services(tmp_path):
            pass
        with use_services(tmp_path) as used:
            used.wait_ready(5)
            assert used.by_name == running
            assert used.environment()["MLFLOW_TRACKING_URI"] == running[MLFLOW].url
        assert running_services(tmp_path) == running, "another command's servers are not ended"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.stdout.close()
    assert all(_gone(address) for address in running.values())
    assert running_services(tmp_path) == {}
    assert not (tmp_path / "services.json").exists()


def _its_link_logs_a_browser_in(link: str, page: str) -> None:
    browser = build_opener(HTTPCookieProcessor())
    with pytest.raises(HTTPError, match="401"):
        browser.open(page)
    with browser.open(Request(link, headers={"Accept": "text/html"})) as answer:
        assert "token" not in answer.url
    with browser.open(page) as answer:
        assert answer.status == 200


@pytest.mark.services
def test_prefects_database_is_made_once_for_all_homes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, home, old = tmp_path / "share" / "prefect", tmp_path / "home", tmp_path / "old"
    monkeypatch.setattr(new_homes, "saved_files", lambda: saved)
    home.mkdir()
    new_homes.begin(home)
    assert not list(home.iterdir()), "there is nothing to begin with yet"
    new_homes.main()
    new_homes.begin(home)
    assert {file.name for file in home.iterdir()} == {"prefect.db", new_homes.block_types()}
    with sqlite3.connect(home / "prefect.db") as database:
        rows = {
            table: database.execute(f"select count(*) from {table}").fetchone()[0]
            for table in ("alembic_version", "block_type", "configuration", "flow", "log")
        }
    assert rows.pop("block_type") > 20
    assert rows == {"alembic_version": 1, "configuration": 0, "flow": 0, "log": 0}
    old.mkdir()
    (old / "prefect.db-wal").write_text("of a database that is gone")
    new_homes.begin(old)
    assert len(list(old.iterdir())) == 1


@pytest.mark.services
def test_an_interruption_while_servers_start_ends_them(tmp_path: Path) -> None:
    process = _program(UP, tmp_path)
    assert process.stdout is not None
    until((tmp_path / "logs" / "mlflow.log").exists, 30)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    process.stdout.close()
    assert not (tmp_path / "services.json").exists()


def test_a_taken_port_is_named_with_its_remedy(tmp_path: Path) -> None:
    with listening_socket() as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"mlflow_port = {port}: .*--mlflow-port"):
            start_services(tmp_path, [MLFLOW], ports={MLFLOW: port})


def test_a_server_that_ends_reports_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, log: Path, environment: dict[str, str], **__: object) -> object:
        return start_child("tasks.runtime.no_such_program", [], environment=environment, log=log)

    monkeypatch.setattr(services_module, "start_child", broken)
    with start_services(tmp_path, [PREFECT]) as services, pytest.raises(ServiceFailed) as failed:
        services.wait_ready(30)
    assert "No module named tasks.runtime.no_such_program" in str(failed.value)
    assert "exit code 1" in failed.value.last_lines[-1]


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with listening_socket() as silent:
        child = start_child("http.server", ["0"], environment=dict(os.environ), log=log)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        try:
            with pytest.raises(ServiceFailed, match="no answer from"):
                Service(MLFLOW, url, child.pid, log, child).wait_ready(0.1)
        finally:
            stop_group(child)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"prefect": {}}',
        '{"mlflow": {"url": 1}}',
        '{"mlflow": {"url": "http://127.0.0.1:9", "pid": 2147483647}}',
    ],
)
def test_a_torn_register_or_one_of_ended_processes_means_no_servers(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "services.json").write_text(content)
    assert running_services(tmp_path) == {}


class Recorder(BaseHTTPRequestHandler):
    """Another program on a port: takes down what it is sent, and says that it is well."""

    sent: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.sent.append(f"{self.path} {self.headers.get('Authorization')}")
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(application: Any) -> Iterator[str]:
    """An ASGI application on a free port."""
    listener = listening_socket()
    server = uvicorn.Server(uvicorn.Config(application, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_a_login_goes_to_servers_of_this_home_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Recorder.sent.clear()
    (tmp_path / "own").mkdir(mode=0o700)
    token = login_token(tmp_path / "own")
    guards = [
        Guard(PlainTextResponse("OK"), key, ("127.0.0.1",), ("/health",))
        for key in (token, "0" * 32)
    ]
    with (
        HTTPServer(("127.0.0.1", 0), Recorder) as stranger,
        serving(guards[0]) as own,
        serving(guards[1]) as other_home,
    ):
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        taken = f"http://127.0.0.1:{stranger.server_port}"
        for url in (taken, other_home, own):
            content = {MLFLOW: {"url": url, "pid": os.getpid()}}
            (tmp_path / "own" / "services.json").write_text(json.dumps(content))
            assert (MLFLOW in running_services(tmp_path / "own")) is (url == own)
        login = {"Authorization": f"Bearer {token}"}
        for url in (own, taken, other_home):
            standing = Service(MLFLOW, url, os.getpid(), tmp_path / "log")
            with Services(tmp_path / "own", {MLFLOW: standing}):
                for get in (requests.get, httpx.get):
                    if url == own:
                        assert get(f"{url}/runs", headers=login).text == "OK"
                        continue
                    with pytest.raises((requests.ConnectionError, httpx.ConnectError)):
                        get(f"{url}/runs", headers=login)
        assert requests.get(f"{taken}/after").ok, "the watch over connections has ended"
        stranger.shutdown()
    assert Recorder.sent.pop() == "/after None"
    assert all(asked.endswith(" None") for asked in Recorder.sent)
    assert {asked.partition("?")[0] for asked in Recorder.sent} <= {PROOF_PATH, "/health None"}
    warned = [record.getMessage() for record in caplog.records if "sent nothing" in record.msg]
    assert [taken in text for text in warned] == [True, False, True, False], "each once"


def test_a_server_that_dies_is_started_again_on_its_port_which_nobody_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fake(module: str, *arguments: Any, **options: Any) -> Any:
        return start_child("tests.runtime.fake_server", *arguments, **options)

    monkeypatch.setattr(services_module, "start_child", fake)
    tmp_path.chmod(0o700)
    seen = set()
    with start_services(tmp_path, [MLFLOW]) as services:
        server = services.by_name[MLFLOW]
        port = int(server.url.rpartition(":")[2])
        for _ in range(STARTS):
            process = int(requests.get(server.url, timeout=30).text)
            assert process == server.pid
            seen.add(process)
            services.check_alive()
            os.kill(process, signal.SIGKILL)
            until(lambda ended=process: not Path(f"/proc/{ended}").exists() or server.has_ended, 10)
        with pytest.raises(ServiceFailed, match="exit code -9"):
            until(services.check_alive, 10)
        until(lambda: not port_in_use(port), 10)
    assert len(seen) == STARTS
    assert caplog.text.count("is started again") == STARTS - 1
