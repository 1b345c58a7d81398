"""Kills, cancels, starves and corrupts whatever can be, and counts what that costs.

    python -m tests.benchmarks.faults [--report FILE]

It runs every fault test (`pytest -m faults`), each with real processes, servers and files, and
prints one JSON object on its last line:

- `faults_injected`: kinds times points, listed in `faults`; `faults_survived`: those after which
  everything was as it should be, `slurm_faults_survived` of them in jobs of a real Slurm, if one is
  installed. `faults_skipped`: tests that this machine cannot run.
- `orphans`: processes, ports, locks, claims and scratch folders that stayed.
  `metrics_lost`: values that MLflow lacks, has twice or has otherwise than of an undisturbed
  training, over the `metrics_looked_at` faults whose training makes metrics.
  `resume_identical`: whether every training that went on ended with the weights of one that
  nothing had disturbed, to the bit.
- `cancel_to_last_rank_dead_s`: the slowest of the cancellations, from the request to Prefect;
  null where none got so far.
- `checkpoint_upload_over_raw`, `training_stall_fraction`: see `tests.benchmarks.checkpoints`.
- `list_s`: how long the list took.

`--report` reads a list that has run (pytest's JUnit file) instead of running it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.benchmarks.figures import report, seconds
from tests.faults.records import UNDER_SLURM

ROOT = Path(__file__).parents[2]
AT_LEAST = {"faults_injected": 20, "metrics_looked_at": 20, "resume_identical": True}
AT_MOST = {"orphans": 0, "metrics_lost": 0, "cancel_to_last_rank_dead_s": 10}


def run_list(file: Path) -> float:
    """Runs every fault test; its words go to stderr. Returns the seconds that it took."""
    options = ["-m", "faults", "-v", "--junitxml", str(file), "-o", "junit_family=xunit1"]
    command = [sys.executable, "-m", "pytest", *options]
    return seconds(lambda: subprocess.run(command, cwd=ROOT, stdout=sys.stderr))


def figures_of(file: Path) -> dict[str, Any]:
    """What the tests recorded of themselves; one that failed before it could tell is a fault, too.

    A test of the list that records nothing and passes is not a fault.
    """
    tests = list(_recorded(file))
    cancelled = [float(test["cancel_seconds"]) for test in tests if "cancel_seconds" in test]
    faults = [test for test in tests if "fault" in test and test["end"] != "skipped"]
    looked = [int(fault["metrics_lost"]) for fault in faults if "metrics_lost" in fault]
    identical = [
        fault["resume_identical"] == "true" for fault in faults if "resume_identical" in fault
    ]
    return {
        "faults_injected": len(faults),
        "faults_survived": sum(fault["end"] == "passed" for fault in faults),
        "slurm_faults_survived": sum(
            fault["end"] == "passed" and fault["fault"].endswith(UNDER_SLURM) for fault in faults
        ),
        "faults_skipped": sum(test["end"] == "skipped" for test in tests),
        "orphans": sum(int(fault.get("orphans", 0)) for fault in faults),
        "metrics_lost": sum(looked),
        "metrics_looked_at": len(looked),
        "resume_identical": bool(identical) and all(identical),
        "cancel_to_last_rank_dead_s": max(cancelled, default=None),
        "faults": [fault["fault"] for fault in faults],
    }


def _recorded(file: Path) -> Iterator[dict[str, str]]:
    for case in ElementTree.parse(file).iter("testcase"):
        test = {known.attrib["name"]: known.attrib["value"] for known in case.iter("property")}
        ends = [end for end in ("failure", "error", "skipped") if case.find(end) is not None]
        test["end"] = ends[0] if ends else "passed"
        if test["end"] in ("failure", "error"):
            test.setdefault("fault", case.attrib["name"])
        yield test


def main() -> None:
    from tests.benchmarks import checkpoints

    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path, help="A JUnit file of a list that has run.")
    known: Path | None = parser.parse_args().report
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        file = known or Path(temporary) / "report.xml"
        if known is None:
            figures["list_s"] = run_list(file)
        figures |= figures_of(file)
    figures |= checkpoints.checkpoint_upload() | checkpoints.training_stall()
    survived = {"faults_survived": figures["faults_injected"]}
    at_least = AT_LEAST | survived | checkpoints.AT_LEAST
    report(figures, at_least=at_least, at_most=AT_MOST | checkpoints.AT_MOST)


if __name__ == "__main__":
    main()
