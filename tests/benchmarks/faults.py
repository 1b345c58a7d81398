"""Kills, cancels, starves and corrupts whatever can be, and counts what that costs.

    python -m tests.benchmarks.faults

It runs every fault test (`pytest -m faults`), each with real processes, servers and files, and
prints one JSON object on its last line:

- `faults_injected`: kinds times points, listed in `faults`; `faults_survived`: those after which
  everything was as it should be. `faults_skipped`: tests that this machine cannot run.
- `orphans`: processes, ports, locks, claims and scratch folders that stayed.
  `metrics_lost`: values that MLflow lacks, has twice or has otherwise than of an undisturbed
  training, over the `metrics_looked_at` faults whose training makes metrics.
  `resume_identical`: whether every training that went on ended with the weights of one that
  nothing had disturbed, to the bit.
- `cancel_to_last_rank_dead_s`: the slowest of the cancellations, from the request to Prefect;
  null where none got so far.
- `list_s`: how long the list took.

Then it gives the command what cannot work:

- `bad_inputs` of `tests/flows/bad_inputs.py`: those that are refused in one `clear` line (or
  counted by the plan, where they are only odd), `unclear` ones, `tracebacks`, `hangs` (ten seconds
  without a word), and those `accepted`. `not_clear` names them.
- `own_code_changes_noticed`: the share of changes of a user's files that are another key.
- `separators_survived`: separators that JSON leaves in texts, in ids of a study that reached its
  page.
- `homes_left_as_found`, `strangers_refused`, `verify_finds` of `verify_files` and
  `recomputed_beyond_need`, as `tests.faults.figures_of_homes` tells.
- `slurm_faults_survived` and `bits_identical`, where a Slurm could be started.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import report, run_tests, timed
from tests.faults import figures_of_homes
from tests.flows.separators import separators_survived
from tests.user_functions import own_code_changes_noticed

AT_LEAST = {
    "faults_injected": 20,
    "metrics_looked_at": 20,
    "resume_identical": True,
    "bad_inputs": 80,
    "own_code_changes_noticed": 1.0,
    "separators_survived": 8,
    "homes_left_as_found": True,
    "strangers_refused": True,
    "verify_finds": 1.0,
    "slurm_faults_survived": 5,
    "bits_identical": True,
}
AT_MOST = {
    "orphans": 0,
    "metrics_lost": 0,
    "cancel_to_last_rank_dead_s": 10,
    "unclear": 0,
    "tracebacks": 0,
    "hangs": 0,
    "accepted": 0,
    "recomputed_beyond_need": 0,
}


def figures_of(tests: Sequence[dict[str, str]]) -> dict[str, Any]:
    """What the tests recorded of themselves; one that failed before it could tell is a fault, too.

    A test that records nothing and passes is not a fault.
    """
    ended = [test for test in tests if test["end"] != "skipped"]
    faults = [test for test in ended if "fault" in test or test["end"] != "passed"]
    looked = [int(fault["metrics_lost"]) for fault in faults if "metrics_lost" in fault]
    identical = [fault.get("resume_identical") for fault in faults]
    cancelled = [float(test["cancel_seconds"]) for test in tests if "cancel_seconds" in test]
    return {
        "faults_injected": len(faults),
        "faults_survived": sum(fault["end"] == "passed" for fault in faults),
        "faults_skipped": len(tests) - len(ended),
        "orphans": sum(int(fault.get("orphans", 0)) for fault in faults),
        "metrics_lost": sum(looked),
        "metrics_looked_at": len(looked),
        "resume_identical": "true" in identical and "false" not in identical,
        "cancel_to_last_rank_dead_s": max(cancelled, default=None),
        "faults": [fault.get("fault", fault["name"]) for fault in faults],
    }


def inputs_figures() -> dict[str, Any]:
    """What becomes of bad inputs, of a user's changed code, and of odd ids."""
    command = [sys.executable, "-m", "tests.flows.bad_inputs"]
    # A process of its own: it forks.
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = [json.loads(line) for line in lines.split("\n") if line.startswith("{")]
    verdicts = Counter(row["verdict"] for row in rows)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as lab:
        noticed, survived = own_code_changes_noticed(Path(folder)), separators_survived(Path(lab))
    return {
        "bad_inputs": len(rows),
        "clear": verdicts["clear"],
        "unclear": verdicts["unclear"],
        "tracebacks": verdicts["traceback"],
        "hangs": verdicts["hang"],
        "accepted": verdicts["accepted"],
        "not_clear": [row["name"] for row in rows if row["verdict"] != "clear"],
        "own_code_changes_noticed": noticed,
        "separators_survived": survived,
    }


def homes_figures() -> dict[str, Any]:
    """Of homes, and of damage in a store."""
    figures: dict[str, Any] = {}
    for tried in (
        figures_of_homes.homes_left_as_found,
        figures_of_homes.strangers_refused,
        figures_of_homes.verify_finds,
        figures_of_homes.recomputed_beyond_need,
    ):
        with tempfile.TemporaryDirectory() as folder:
            figures |= tried(Path(folder))
    return figures


def main() -> None:
    took, tests = timed(lambda: run_tests("-m", "faults"))
    figures = figures_of(tests) | {"list_s": took} | inputs_figures()
    figures |= homes_figures() | figures_of_homes.of_slurm(tests)
    at_least = AT_LEAST | {"faults_survived": figures["faults_injected"]}
    report(figures, at_least=at_least, at_most=AT_MOST)


if __name__ == "__main__":
    main()
