"""Inputs that cannot work: one clear line each, before anything runs.

Here is a part of the list, in this process; `python -m tests.benchmarks.faults` tries all of it,
with time limits.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from flows import cli
from tests.flows.bad_inputs import (
    BAD_INPUTS,
    CHAT,
    CODE,
    COMMANDS,
    DATA,
    FILES,
    PIPE,
    SETTINGS,
    BadInput,
    environment,
    judged as verdict_on,
    make_folder,
)

EVERY = 3
SOME = [
    bad
    for group in (SETTINGS, FILES, DATA, CHAT[:1], CODE, COMMANDS)
    for bad in group[::EVERY]
    if PIPE not in bad.files.values()
]


@pytest.mark.parametrize("bad", SOME, ids=lambda bad: bad.name)
def test_one_clear_line(
    bad: BadInput,
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "here"
    make_folder(folder, bad, inputs)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "argv", ["dynolab", *bad.arguments])
    with patch.dict(os.environ, environment(folder, bad)), pytest.raises(SystemExit) as end:
        cli.main()
    sys.modules.pop("mine", None)
    printed = capsys.readouterr()
    verdict = verdict_on(bad, int(end.value.code or 0), printed.out, printed.err)
    assert verdict == "clear", printed.out + printed.err
    assert not list(folder.glob("home/store/stages/*/*/attempt-*"))


def test_no_input_is_listed_twice() -> None:
    names = [bad.name for bad in BAD_INPUTS]
    assert len(names) == len(set(names)) >= 80
