"""The command line on homes of its own, and what it leaves there and on the machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from tasks.runtime.system.processes import marked_processes
from tasks.runtime.system.secret_files import own_folder
from tasks.training import RECORDS
from tests.flows.history import History, finished_history

ROOT = Path(__file__).resolve().parents[2]
SMALL = Path(__file__).with_name("small.yaml")
DEADLINE_SECONDS = 500.0
"""Patience with commands, on a slow machine too; pytest ends a test after 600 s."""


def until(reached: Callable[[], Any], seconds: float = DEADLINE_SECONDS) -> Any:
    """Waits for something true and gives it."""
    deadline = time.monotonic() + seconds
    while not (answer := reached()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return answer


class Lab:
    """One home, and commands that run on it."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder, self.home = folder, folder / "home"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.marker = uuid4().hex
        self.environment = os.environ | {
            "DYNOLAB_HOME": str(self.home),
            "DYNOLAB_TEST": self.marker,
            "TMPDIR": str(self.temporary),
            "PREFECT_HOME": str(folder / "prefect"),
            "OMP_WAIT_POLICY": "PASSIVE",
            **environment,
        }
        self.kept: set[int] = set()
        """Processes that go on when a run has ended: servers and workers."""

    def start(
        self, *changes: str, config: Path = SMALL, flow: str = "study"
    ) -> subprocess.Popen[str]:
        """`dynolab study`, or another flow, with changes, under way."""
        command = [sys.executable, "-m", "flows.cli", flow, "--config", str(config), "--json"]
        for change in changes:
            command += ["--set", change]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.environment,
            text=True,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def alone(self) -> Lab:
        """This lab with no servers but those that its commands start."""
        for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
            del self.environment[name]
        return self

    @property
    def mlflow(self) -> str:
        """MLflow's address, with the login."""
        return address_with_login(self.environment)

    def study(self, *changes: str, config: Path = SMALL, flow: str = "study") -> dict[str, str]:
        """Runs the study, or another flow, to its good end; stage → cached or computed."""
        printed = ended_well(self.start(*changes, config=config, flow=flow))
        stages = json.loads(printed.splitlines()[-1])["stages"]
        return {name: "cached" if at["cached"] else "computed" for name, at in stages.items()}

    def manifest(self, stage: str) -> dict[str, Any]:
        """Of the one committed result of a stage."""
        (marker,) = self.home.glob(f"store/stages/{stage}/*/COMMITTED")
        attempt = json.loads(marker.read_text())["attempt"]
        return json.loads(next(marker.parent.glob(f"*{attempt}*/manifest.json")).read_text())

    def history(self) -> History:
        """What MLflow has of this home's one training, whose project is `undisturbed`."""
        return finished_history(self.mlflow, "undisturbed")

    def hashes(self, stage: str) -> dict[str, str]:
        """sha256 of a result's files, but for those that hold times."""
        files = self.manifest(stage)["files"]
        return {name: at["sha256"] for name, at in files.items() if name != "metrics.jsonl"}

    def ranks(self) -> dict[int, int]:
        """The ranks that live now: number → process."""
        numbers = {pid: _variable(pid, "RANK") for pid in self.processes()}
        return {int(rank): pid for pid, rank in numbers.items() if rank is not None}

    def pause_start(self) -> int:
        """Stops rank 1 of preference training before it can have done anything.

        It has its log by then: before, it is not yet tied to its parent, and would stay, stopped.
        """
        until(lambda: list(self.home.glob("scratch/preference-*/logs/rank-1.log")))
        return self._stop_rank()

    def pause_preference(self) -> int:
        """Stops rank 1 in the middle of preference training, once a resume state is committed."""
        state = "step-00000003"
        until(lambda: list(self.home.glob(f"scratch/preference-*/resume/{state}")))
        rank = self._stop_rank()
        until(lambda: self.markers("preference/*/resume/step-*"))
        assert not self.markers("preference/*")
        return rank

    def markers(self, folder: str) -> list[str]:
        """What is committed in a folder of the store's stages."""
        return [str(path) for path in self.home.glob(f"store/stages/{folder}/COMMITTED")]

    def _stop_rank(self) -> int:
        rank = self.ranks()[1]
        os.kill(rank, signal.SIGSTOP)
        return rank

    def processes(self) -> list[int]:
        """All that this home's commands have started and that lives."""
        return marked_processes(f"DYNOLAB_TEST={self.marker}")

    def left_behind(self) -> list[str]:
        """Processes, build locks, work folders, claims and unsent tracking."""
        left = [f"process {pid}" for pid in self.processes() if pid not in self.kept]
        # torch keeps a cache there that all processes of a user share, Prefect's workers a folder.
        kept = ("torchinductor", "runner_storage")
        left += [str(p) for p in self.temporary.iterdir() if not p.name.startswith(kept)]
        for pattern in ("scratch/*", "outbox/*", "store/stages/*/*/CLAIM", "store/**/*.part"):
            left += [str(path) for path in self.home.glob(pattern)]
        return left

    def adopt(self, finished: Lab, *, without: Sequence[str] = ()) -> Lab:
        """This lab with the results of another home, but for those of some stages.

        The recorded steps' tensors come along: to make them again takes as many threads as before.
        """
        own_folder(self.home)
        for folder in ("store", f"cache/{RECORDS}"):
            shutil.copytree(finished.home / folder, self.home / folder)
        for name in without:
            shutil.rmtree(self.home / "store" / "stages" / name)
        return self


def address_with_login(environment: Mapping[str, str]) -> str:
    """MLflow's address as its clients take it, with the login in it."""
    user, password = (environment[f"MLFLOW_TRACKING_{name}"] for name in ("USERNAME", "PASSWORD"))
    return environment["MLFLOW_TRACKING_URI"].replace("http://", f"http://{user}:{password}@")


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a command printed by its end, which is awaited."""
    try:
        return process.communicate(timeout=DEADLINE_SECONDS)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def ended_well(process: subprocess.Popen[str]) -> str:
    """What a command printed by its good end."""
    printed, errors = ended(process)
    assert process.returncode == 0, printed + errors
    return printed


def complaints(process: subprocess.Popen[str], code: int = 2) -> str:
    """What a command said of its bad end, which was foreseen."""
    printed, errors = ended(process)
    assert process.returncode == code, printed + errors
    assert "Traceback" not in errors
    return errors


def _variable(pid: int, name: str) -> str | None:
    try:
        return psutil.Process(pid).environ().get(name)
    except psutil.Error:
        return None
