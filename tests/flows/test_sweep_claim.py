"""Of two who run one sweep the second is told who the first is; a dead first one is succeeded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dynolab.errors import ConfigError
from dynolab.store import Store
from flows.parameters import validated
from flows.sweep.memory import SweepStudy
from flows.sweep.parameters import SweepParameters
from flows.sweep.sweep import alone
from tests.flows.lab import ROOT, SMALL, Lab, ended

HOLDER = """
import sys, time
from dynolab.store import Claim, Store
from dynolab.store import claim as module
module.RENEW_SECONDS = 0.1
url, cache, name = sys.argv[1:]
claim = Claim(Store(url, cache=cache).files, f"sweeps/{name}/CLAIM")
assert claim.try_acquire()
print("held", flush=True)
time.sleep(120)
"""


def a_sweep(home: Path) -> SweepStudy:
    space = {"preference.objective.beta": {"values": [0.1, 1.0]}}
    given = {"name": "tried", "study": str(SMALL), "space": space}
    return SweepStudy(validated(SweepParameters, given))


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepStudy:
    monkeypatch.setenv("DYNOLAB_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DYNOLAB_SWEEPS", raising=False)
    return a_sweep(tmp_path / "home")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/home/store", cache=tmp_path / "cache")


@pytest.fixture
def holder(study: SweepStudy, store: Store, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, store.files.url, str(tmp_path / "cache"), study.name]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_is_told_who_the_first_is(
    study: SweepStudy, store: Store, holder: subprocess.Popen[str]
) -> None:
    with (
        pytest.raises(ConfigError, match=rf"name = 'tried': process {holder.pid} on .* runs this"),
        alone(study, store),
    ):
        pass


def test_a_killed_first_is_succeeded_and_nothing_stays(
    study: SweepStudy, store: Store, holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    holder.kill()
    holder.wait()
    with alone(study, store):
        assert list(tmp_path.glob("home/store/sweeps/*/CLAIM"))
    assert not list(tmp_path.glob("home/store/sweeps/*/CLAIM"))


@pytest.mark.services
def test_a_second_command_ends_with_a_message_and_begins_no_trial(
    tmp_path: Path,
    servers: dict[str, str],
    study: SweepStudy,
    store: Store,
    holder: subprocess.Popen[str],
) -> None:
    lab = Lab(tmp_path / "lab", **servers, DYNOLAB_HOME=str(tmp_path / "home"))
    file = tmp_path / "tried.yaml"
    written = study.parameters.model_dump(mode="json", exclude_none=True)
    file.write_text(yaml.safe_dump(written))
    process = lab.start(config=file, flow="sweep")
    said, complained = ended(process)
    assert process.returncode == 2, said + complained
    assert f"process {holder.pid} on {os.uname().nodename} runs this sweep now" in complained
    assert study.rows() == []
