"""Wall times of the built-in study.

    python -m tests.benchmarks.study [--keep FOLDER]

Prints one JSON object on its last line: `cold_s`: the study in an empty home, servers included;
`cached_s`: again, every stage cached, no server standing (median of 5); `cached_warm_s`: again,
against standing servers (median of 5); `stages`: how many results it left.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tasks.runtime.servers.services import MLFLOW, PREFECT, standing_services
from tests.benchmarks.figures import ROOT, STUDIES, report, seconds

STUDY = STUDIES / "builtin.yaml"
REPEATS = 5
AT_MOST = {"cold_s": 360.0, "cached_s": 45.0, "cached_warm_s": 10.0}


def study(home: Path) -> None:
    """Runs it in a home, with the servers of that home alone."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    environment |= {"DYNOLAB_HOME": str(home), "DYNOLAB_STORE": f"file://{home}/store"}
    command = [sys.executable, "-m", "flows.cli", "study", "--config", str(STUDY)]
    subprocess.run(command, env=environment, cwd=ROOT, check=True)


def median(work: Callable[[], object]) -> float:
    return statistics.median(seconds(work) for _ in range(REPEATS))


def measure(folder: Path) -> dict[str, float]:
    home = folder / "home"
    figures = {"cold_s": seconds(lambda: study(home)), "cached_s": median(lambda: study(home))}
    with standing_services(home, {PREFECT: 0, MLFLOW: 0}):
        figures["cached_warm_s"] = median(lambda: study(home))
    figures["stages"] = len(list((home / "store" / "stages").glob("*/*/COMMITTED")))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="work here and keep what was made")
    keep = parser.parse_args().keep
    if keep:
        keep.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure((keep or Path(folder)).resolve())
    report(figures, at_most=AT_MOST)


if __name__ == "__main__":
    main()
