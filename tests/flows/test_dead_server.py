"""A command whose Prefect server is away: its results count, or one message says what is kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from dynolab.errors import ConfigError, ServiceFailed
from flows import commands, run
from flows.commands import is_outage, run_on_servers
from flows.study.flow import STUDY
from tasks.runtime.servers.services import Services

GONE = httpx.ConnectError("refused")
BUSY = httpx.HTTPStatusError(
    "busy", request=httpx.Request("GET", "http://x"), response=httpx.Response(503)
)
WRONG = httpx.HTTPStatusError(
    "wrong", request=httpx.Request("GET", "http://x"), response=httpx.Response(422)
)


@pytest.fixture(autouse=True)
def no_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(commands, "use_services", lambda home, names: Services(home, {}))
    prefect = {"DYNOLAB_HOME": str(tmp_path / "home"), "PREFECT_API_URL": "http://127.0.0.1:1/api"}
    with patch.dict(os.environ, prefect):  # the command sets variables
        yield


def flow(results: list[str], error: Exception) -> Callable[..., Any]:
    """A flow that returns results to itself, and of which Prefect then hears nothing."""

    def as_prefect_flow(_: Any, planned: Any, done: list[Any]) -> Callable[..., Any]:
        def run_it(parameters: Any, fresh: Any) -> Any:
            done.extend(results)
            raise error

        return run_it

    return as_prefect_flow


def wrapped(error: Exception) -> Exception:
    outer = RuntimeError("Failed to reach API")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize("error", [GONE, BUSY, wrapped(GONE)])
def test_results_count_though_prefect_never_hears_of_them(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "as_prefect_flow", flow(["results"], error))
    assert run_on_servers(STUDY, None) == "results"
    assert "Prefect did not come back" in capsys.readouterr().out


@pytest.mark.parametrize("error", [GONE, BUSY, wrapped(GONE)])
def test_an_unfinished_run_says_what_is_kept(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "as_prefect_flow", flow([], error))
    with pytest.raises(ServiceFailed, match="run the same command again") as caught:
        run_on_servers(STUDY, None)
    assert "nobody answers at http://127.0.0.1:1/api" in str(caught.value)


@pytest.mark.parametrize("error", [ConfigError("a", 1, "b"), ValueError("bug"), WRONG])
def test_an_error_of_the_run_itself_stays_what_it_is(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "as_prefect_flow", flow(["results"], error))
    with pytest.raises(type(error)) as caught:
        run_on_servers(STUDY, None)
    assert caught.value is error and not is_outage(error)
