from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from dynolab.functions import ALLOWED
from flows import cli

Command = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def allowed() -> Iterator[None]:
    """Rewards and losses of the tests may be named."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ALLOWED, "tests.training.rewards,tests.objectives.losses")
        yield


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Runs `dynolab` in this process to its end with a code; gives what it printed."""
    monkeypatch.setenv("DYNOLAB_HOME", str(tmp_path / "home"))

    def run(*arguments: str, code: int = 0) -> Any:
        monkeypatch.setattr(sys, "argv", ["dynolab", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = capsys.readouterr()
        assert (end.value.code or 0) == code, printed.err
        return printed

    with patch.dict(os.environ):  # the command sets variables
        yield run
