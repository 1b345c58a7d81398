"""What a user meets in the first minutes: setup, help, first page, own pairs, pages in a browser.

    python -m tests.benchmarks.first_minutes [--keep FOLDER] [--only PART …]

Prints one JSON object on its last line:

- `install`: `install_s`: pip installs the wheel with the extras that README names in a new
  environment; `setup`: `setup_s`: `make setup` in a new clone of the last commit. Both download.
- `starting`: `help_s`, `import_dynolab_s`: `dynolab --help`, `import dynolab` in a new process
  (median of 5).
- `first_page`: `first_page_s`: `make study` in an empty home, set up, until its page exists.
- `own_pairs`: `own_pairs_to_culprits_s`: README's two commands (`init`, `study`) on 200 pairs and a
  Llama of 656,000 parameters, until the page says who pulled which answers down; needs
  DYNOLAB_TEST_DATA. `own_pairs_cpu_s`: seconds of CPU of all its processes until then, which other
  work on the machine hardly changes.
- `in_browser`: of that study, at 1280 and 390 pixels; needs Debian's chromium. `report_bytes`;
  `report_load_s`: from the address to the page's first screen, drawn (median);
  `computed_map_s`: in the explorer, from a click on the hardest pull to its map, which is computed;
  `explorer_click_to_map_s`: the same once that map is stored (median); `console_errors` of both.
- `manual`: what `python -m tests.benchmarks.manual` measures.

A part that lacks what it needs gives no figures, and says so.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
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

from tests.benchmarks import manual
from tests.benchmarks.figures import gather, report, seconds
from tests.benchmarks.first_minutes_installed import install, setup
from tests.benchmarks.first_minutes_seen import seen
from tests.browsing import CHROMIUM
from tests.flows.lab import ROOT

REPEATS, PATIENCE = 5, 1800.0
PAIRS = 200
AT_MOST = {
    "first_page_s": 60.0,
    "help_s": 1.0,
    "import_dynolab_s": 2.0,
    "report_bytes": 1e7,
    "report_load_s": 3.0,
    "explorer_click_to_map_s": 1.0,
    "console_errors": 0,
    "own_pairs_to_culprits_s": 300.0,
    **manual.AT_MOST,
}


def started(home: Path, *command: str, cwd: Path = ROOT) -> subprocess.Popen[bytes]:
    """A command on a home, without servers of others."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    environment |= {"DYNOLAB_HOME": str(home), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, cwd=cwd, stdout=sys.stderr)


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
    home.mkdir(parents=True)
    began = time.perf_counter()
    # `setup` is done; its environment is the one that this runs in.
    running = started(home, "make", "--old-file=setup", f"VENV={sys.prefix}", "study")
    until(home / "reports" / "builtin.html", running)
    took = time.perf_counter() - began
    running.terminate()
    running.wait()
    return {"first_page_s": took}


def own_pairs(home: Path) -> dict[str, float]:
    """README's commands on a folder's model and a file of pairs; runs the study to its end."""
    data = Path(os.environ["DYNOLAB_TEST_DATA"])
    home.mkdir(parents=True)
    source = data / "data" / "probes" / "hh_helpful_probe_train.jsonl.gz"
    with gzip.open(source, "rt") as lines, (home / "pairs.jsonl").open("w") as file:
        for line in itertools.islice(lines, PAIRS):
            row = json.loads(line)
            pair = {"prompt": row["prompt"], "chosen": row["chosen"], "rejected": row["rejected"]}
            file.write(json.dumps(pair) + "\n")
    model = data / "models" / "tinystories-656k"
    began = time.perf_counter()
    ended = cpu_seconds(psutil.Process())
    dynolab = partial(started, home, sys.executable, "-m", "dynolab", cwd=home)
    init = dynolab("init", "my_study.yaml", "--model", str(model), "--data", "pairs.jsonl")
    assert init.wait() == 0, "init failed; see its lines above"
    running = dynolab("study", "my_study.yaml")
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


def in_browser(home: Path) -> dict[str, float]:
    """The page and the explorer of the study of own pairs."""
    return seen(home, home / "reports" / "my_study.html")


PARTS = {
    "install": (install, "install"),
    "setup": (setup, "setup"),
    "starting": (lambda _: starting(), ""),
    "first_page": (first_page, "first"),
    "own_pairs": (own_pairs, "own"),
    "in_browser": (in_browser, "own"),
    "manual": (lambda _: manual.manual(), ""),
}
"""What is measured, and in which folder."""


def missing(part: str) -> str:
    """What a part needs and does not find."""
    if part in ("own_pairs", "in_browser") and "DYNOLAB_TEST_DATA" not in os.environ:
        return "DYNOLAB_TEST_DATA"
    return "Debian's chromium" if part == "in_browser" and CHROMIUM is None else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="folder for the homes; default: a temporary one")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        parts = []
        for name in arguments.only:
            if lacks := missing(name):
                print(f"{name}: skipped, needs {lacks}", file=sys.stderr)
                continue
            measure, place = PARTS[name]
            parts.append(partial(measure, folder / place))
        report(gather(parts), at_most=AT_MOST, at_least=manual.AT_LEAST)


if __name__ == "__main__":
    main()
