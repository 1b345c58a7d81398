"""Wall times of the built-in study, and whether a killed one ends with the same weights.

    python -m tests.benchmarks.study [--keep FOLDER]

Prints one JSON object on its last line:

- `cold_s`: the study in an empty home, servers included; `cached_s`: again, every stage cached, no
  server standing; `cached_warm_s`: again, against standing servers (median of 5).
- `ranks`, `stages`, `probe_kinds`: counts of what the study ran.
- `resume_identical`: whether DPO with a rank killed after its first resume state, started again,
  gives the undisturbed run's weights to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from dynolab.store import Store, hash_file
from flows.parameters import load_parameters
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from tasks.runtime.pipeline import plan
from tasks.runtime.servers.standing_servers import standing_services
from tasks.runtime.stage import Platform
from tasks.runtime.system.processes import marked_processes
from tasks.runtime.system.settings import Settings
from tests.benchmarks.figures import ROOT, STUDIES, report, seconds

STUDY = STUDIES / "builtin.yaml"
REPEATS = 5
NO_CONTRASTS = "contrasts=[]"
AT_MOST = {"cold_s": 360.0, "cached_s": 45.0, "cached_warm_s": 10.0}


def command(home: Path, *changes: str) -> subprocess.Popen[bytes]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    environment |= {"DYNOLAB_HOME": str(home), "DYNOLAB_STORE": f"file://{home}/store"}
    arguments = [sys.executable, "-m", "flows.cli", "study", "--config", str(STUDY)]
    arguments += [part for change in changes for part in ("--set", change)]
    return subprocess.Popen(arguments, env=environment, cwd=ROOT)


def study(home: Path, *changes: str) -> None:
    assert command(home, *changes).wait() == 0, "the study failed; see its lines above"


def median(work: Callable[[], object]) -> float:
    return statistics.median(seconds(work) for _ in range(REPEATS))


def result_folder(home: Path, step: str) -> Path:
    """Where the store of a home keeps a step's result."""
    store = Store(f"file://{home}/store", cache=home / "cache")
    platform = Platform(
        Settings.from_environment({"DYNOLAB_HOME": str(home)}), store, refuse, refuse
    )
    steps = study_steps(resolved(load_parameters(StudyParameters, STUDY)))
    stage_of = {step.name: step.stage.name for step in steps}
    for planned in plan(steps, platform):
        if planned.step == step and planned.state == "cached" and planned.key:
            place = home / "store" / "stages" / stage_of[step] / planned.key
            return place / json.loads((place / "COMMITTED").read_text())["attempt"]
    raise AssertionError(f"{step} has no result in {home}")


def refuse() -> Any:
    raise AssertionError("a plan computes nothing")


def killed_and_resumed(home: Path) -> None:
    """Runs the study with a DPO rank killed once a resume state is committed, then again."""
    running = command(home, NO_CONTRASTS)
    states = home / "store" / "stages" / "preference"
    while not list(states.glob("*/resume/*/COMMITTED")):
        assert running.poll() is None, "the study ended before there was a resume state"
        time.sleep(0.02)
    ranks = set(marked_processes("LOCAL_RANK=1")) & set(marked_processes(f"DYNOLAB_HOME={home}"))
    assert ranks, "no rank is running"
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)
    assert running.wait() != 0, "a study whose rank was killed must fail"
    study(home, NO_CONTRASTS)


def resume_identical(cold: Path, folder: Path) -> bool:
    """Compares weights of an undisturbed and of a killed and resumed DPO on the same SFT."""
    home = folder / "killed"
    for stage in ("data", "base", "sft"):
        shutil.copytree(cold / "store" / "stages" / stage, home / "store" / "stages" / stage)
    killed_and_resumed(home)
    manifest = json.loads((result_folder(home, "preference") / "manifest.json").read_text())
    assert manifest["metrics"]["resumed_from"] > 0, "the second run did not resume"
    one, other = (
        hash_file(result_folder(place, "preference") / "model" / "model.safetensors")
        for place in (cold, home)
    )
    return one == other


def measure(folder: Path) -> dict[str, object]:
    home = folder / "home"
    figures: dict[str, object] = {
        "cold_s": seconds(lambda: study(home)),
        "cached_s": median(lambda: study(home)),
    }
    with standing_services(home, prefect_port=0, mlflow_port=0):
        figures["cached_warm_s"] = median(lambda: study(home))

    probes = (result_folder(home, "sft") / "probes.jsonl").open()
    figures["ranks"] = yaml.safe_load(STUDY.read_text())["sft"]["engine"]["ranks"]
    figures["stages"] = len(list((home / "store" / "stages").glob("*/*/COMMITTED")))
    figures["probe_kinds"] = len({json.loads(line)["kind"] for line in probes} | {"argmax"})
    figures["resume_identical"] = resume_identical(home, folder)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="work here and keep what was made")
    keep = parser.parse_args().keep
    if keep:
        keep.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure((keep or Path(folder)).resolve())
    report(figures, at_least={"resume_identical": True}, at_most=AT_MOST)


if __name__ == "__main__":
    main()
