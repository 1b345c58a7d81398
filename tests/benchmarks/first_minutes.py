"""What a user meets in the first minutes: help, first page, own pairs, the page in a browser.

    python -m tests.benchmarks.first_minutes [--keep FOLDER] [--page FILE]

Prints one JSON object on its last line:

- `help_s`, `import_dynolab_s`: `dynolab --help`, `import dynolab` in a new process (median of 5).
- `first_page_s`: `make study` in an empty home, set up already, until its page exists.
- `own_pairs_to_culprits_s`: README's two commands (`init`, `study`) on 200 pairs and a Llama of
  656,000 parameters, until the page says who pulled which answers down; needs DYNOLAB_TEST_DATA.
  `own_pairs_cpu_s`: seconds of CPU of all its processes until then, which other work on the
  machine hardly changes.
- `report_bytes`; `report_load_s`: from the address to the first screen, drawn (median), and
  `console_errors`, at 1280 and 390 pixels: of that study's page once it is whole, or of `--page`;
  needs Debian's chromium.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from tests.benchmarks.figures import gather, report, seconds
from tests.report.browsing import CHROMIUM, opened

ROOT = Path(__file__).parents[2]
REPEATS, PATIENCE = 5, 1800.0
PAIRS = 200
AT_MOST = {
    "first_page_s": 60.0,
    "help_s": 1.0,
    "import_dynolab_s": 2.0,
    "report_bytes": 1e7,
    "report_load_s": 3.0,
    "console_errors": 0,
    "own_pairs_to_culprits_s": 300.0,
}


def dynolab(home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The command, in a home and in that home's folder."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    environment |= {"DYNOLAB_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dynolab", *arguments]
    return subprocess.Popen(command, env=environment, cwd=home, stdout=sys.stderr)


def until(page: Path, running: subprocess.Popen[bytes], holds: str = "") -> None:
    """Waits for a page, or for what it is to hold."""
    deadline = time.monotonic() + PATIENCE
    while not (page.exists() and (not holds or holds in page.read_text())):
        assert running.poll() in (None, 0), "the command failed; see its lines above"
        assert time.monotonic() < deadline, f"no {page} in {PATIENCE:.0f} s"
        time.sleep(0.2)


def starting() -> dict[str, float]:
    """A process that only helps, and one that only imports."""
    commands = {
        "help_s": [sys.executable, "-m", "dynolab", "--help"],
        "import_dynolab_s": [sys.executable, "-c", "import dynolab"],
    }
    return {name: _median(partial(_run, command)) for name, command in commands.items()}


def _median(work: Callable[[], object]) -> float:
    return statistics.median(seconds(work) for _ in range(REPEATS))


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)


def first_page(home: Path) -> dict[str, float]:
    """The built-in study until its page is there; then it is ended."""
    home.mkdir()
    began = time.perf_counter()
    running = dynolab(home, "study")
    until(home / "reports" / "builtin.html", running)
    took = time.perf_counter() - began
    running.terminate()
    running.wait()
    return {"first_page_s": took}


def own_pairs(home: Path) -> dict[str, float]:
    """README's commands on a folder's model and a file of pairs; runs the study to its end."""
    data = Path(os.environ["DYNOLAB_TEST_DATA"])
    home.mkdir()
    source = data / "data" / "probes" / "hh_helpful_probe_train.jsonl.gz"
    with gzip.open(source, "rt") as lines, (home / "pairs.jsonl").open("w") as file:
        for line in itertools.islice(lines, PAIRS):
            row = json.loads(line)
            pair = {"prompt": row["prompt"], "chosen": row["chosen"], "rejected": row["rejected"]}
            file.write(json.dumps(pair) + "\n")
    model = data / "models" / "tinystories-656k"
    began = time.perf_counter()
    ended = cpu_seconds(psutil.Process())
    init = dynolab(home, "init", "my_study.yaml", "--model", str(model), "--data", "pairs.jsonl")
    assert init.wait() == 0, "init failed; see its lines above"
    running = dynolab(home, "study", "my_study.yaml")
    until(home / "reports" / "my_study.html", running, 'id="pushers"')
    took, cpu = time.perf_counter() - began, cpu_seconds(psutil.Process()) - ended
    assert running.wait() == 0, "the study failed; see its lines above"
    return {"own_pairs_to_culprits_s": took, "own_pairs_cpu_s": cpu}


def cpu_seconds(root: psutil.Process) -> float:
    """Seconds of CPU of all that a process has started, ended ones too."""
    total = sum(root.cpu_times()[2:4])  # of children that have ended
    for process in root.children(recursive=True):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def in_browser(page: Path) -> dict[str, float]:
    """The whole page, opened from where no other file is."""
    moved = page.with_name("moved") / page.name
    moved.parent.mkdir(exist_ok=True)
    shutil.copyfile(page, moved)
    loads, errors = [], 0
    for width in (1280, 390):
        for _ in range(REPEATS):
            with opened(moved, width) as seen:
                loads.append(seen.load_seconds)
                errors += len(seen.errors)
    return {
        "report_bytes": page.stat().st_size,
        "report_load_s": statistics.median(loads),
        "console_errors": errors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="folder for the homes; default: a temporary one")
    parser.add_argument("--page", type=Path, help="page to open in the browser")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        parts = [starting, partial(first_page, folder / "first")]
        page = arguments.page
        if "DYNOLAB_TEST_DATA" in os.environ:
            parts.append(partial(own_pairs, folder / "own"))
            page = page or folder / "own" / "reports" / "my_study.html"
        else:
            print("own pairs: skipped, DYNOLAB_TEST_DATA names no folder", file=sys.stderr)
        if page is not None and CHROMIUM is not None:
            parts.append(partial(in_browser, page))
        else:
            print("browser: skipped, needs a page and Debian's chromium", file=sys.stderr)
        report(gather(parts), at_most=AT_MOST)


if __name__ == "__main__":
    main()
