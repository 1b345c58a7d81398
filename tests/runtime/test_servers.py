"""Prefect's and MLflow's real servers: they start, answer, keep their data at home, and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest

from dynolab.errors import ConfigError, ServiceFailed
from tasks.runtime.open_platform import open_platform
from tasks.runtime.servers import services as services_module
from tasks.runtime.servers.services import (
    MLFLOW,
    PREFECT,
    Service,
    running_services,
    standing_services,
    start_services,
    use_services,
)
from tasks.runtime.system.processes import listening_socket, port_in_use, start_child, stop_group
from tasks.runtime.system.secret_files import login_token
from tests.flows.lab import until

ROOT = Path(__file__).resolve().parents[2]
UP = """
import sys, pathlib
from contextlib import suppress
from tasks.runtime.launch.notice import sigterm_as_interrupt
from tasks.runtime.servers.services import *
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
        assert (tmp_path / "prefect" / "prefect.db").exists()
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
