"""What a user meets in the first minutes: help, first page, own pairs, pages in a browser.

    python -m tests.benchmarks.first_minutes [--only PART …]

Prints one JSON object on its last line:

- `starting`: `help_s`, `import_dynolab_s`: `dynolab --help`, `import dynolab` in a new process
  (median of 5).
- `first_page`: `first_page_s`: `make study` in an empty home, set up, until its page exists.
- `own_pairs`: `own_pairs_to_culprits_s`: README's two commands (`init`, `study`) on 200 pairs and a
  Llama of 656,000 parameters, until the page says who pulled which answers down; needs
  DYNOLAB_TEST_DATA.
- `in_browser`: of that study, at 1280 and 390 pixels; needs Debian's chromium. `report_bytes`;
  `report_load_s`: from the address to the page's first screen, drawn (median);
  `computed_map_s`: in the explorer, from a click on the hardest pull to its map, which is computed;
  `explorer_click_to_map_s`: the same once that map is stored (median); `console_errors` of both.

A part that lacks what it needs gives no figures.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from flows.explore import KEPT
from tests.benchmarks.figures import ROOT, Part, main, real_inputs, seconds, with_data
from tests.browsing import CHROMIUM, browser_page, opened
from tests.explorer.serving import explorer

REPEATS, PATIENCE, WIDTHS = 5, 1800.0, (1280, 390)
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


def starting(_: Path) -> dict[str, float]:
    """A process that only helps, and one that only imports."""
    commands = {
        "help_s": [sys.executable, "-m", "dynolab", "--help"],
        "import_dynolab_s": [sys.executable, "-c", "import dynolab"],
    }
    run = partial(subprocess.run, check=True, capture_output=True, cwd=ROOT)
    return {
        name: statistics.median(seconds(partial(run, command)) for _ in range(REPEATS))
        for name, command in commands.items()
    }


def first_page(home: Path) -> dict[str, float]:
    """The built-in study until its page is there; then it is ended."""
    home = home / "first"
    began = time.perf_counter()
    # `setup` is done; its environment is the one that this runs in.
    running = started(home, "make", "--old-file=setup", f"VENV={sys.prefix}", "study")
    until(home / "reports" / "builtin.html", running)
    took = time.perf_counter() - began
    running.terminate()
    running.wait()
    return {"first_page_s": took}


def own_pairs(home: Path, model: str = "models/tinystories-656k") -> dict[str, float]:
    """README's commands on a folder's model and a file of pairs; runs the study to its end."""
    home = home / "own"
    home.mkdir(mode=0o700)
    folder, source = real_inputs(model, "data/probes/hh_helpful_probe_train.jsonl.gz")
    with gzip.open(source, "rt") as lines, (home / "pairs.jsonl").open("w") as file:
        for line in itertools.islice(lines, PAIRS):
            row = json.loads(line)
            pair = {"prompt": row["prompt"], "chosen": row["chosen"], "rejected": row["rejected"]}
            file.write(json.dumps(pair) + "\n")
    began = time.perf_counter()
    dynolab = partial(started, home, sys.executable, "-m", "dynolab", cwd=home)
    init = dynolab("init", "my_study.yaml", "--model", str(folder), "--data", "pairs.jsonl")
    assert init.wait() == 0, "init failed; see its lines above"
    running = dynolab("study", "my_study.yaml")
    until(home / "reports" / "my_study.html", running, 'id="pushers"')
    took = time.perf_counter() - began
    assert running.wait() == 0, "the study failed; see its lines above"
    return {"own_pairs_to_culprits_s": took}


def in_browser(home: Path) -> dict[str, float]:
    """The page of the study of own pairs, opened where no other file is, and its explorer: the map
    of the first answer's hardest pull, computed once, then stored."""
    home = home / "own"
    page = home / "reports" / "my_study.html"
    moved = page.with_name("moved") / page.name
    moved.parent.mkdir(exist_ok=True)
    shutil.copyfile(page, moved)
    loads, clicks, errors = [], [], 0
    for width in WIDTHS:
        for _ in range(REPEATS):
            with opened(moved, width) as open_page:
                loads.append(open_page.load_seconds)
                errors += len(open_page.errors)
    shutil.rmtree(home / "cache" / KEPT, ignore_errors=True)  # of an earlier measurement
    with explorer(home) as link:
        for width in WIDTHS:
            with browser_page(width) as (tab, wrong):
                tab.set_default_timeout(90_000)
                for _ in range(REPEATS):
                    tab.goto(link)
                    clicks.append(click_to_map(tab))
                errors += len(wrong)
    return {
        "report_bytes": page.stat().st_size,
        "report_load_s": statistics.median(loads),
        "computed_map_s": clicks[0],
        "explorer_click_to_map_s": statistics.median(clicks[1:]),
        "console_errors": errors,
    }


def click_to_map(page: Any) -> float:
    """Seconds from a click on a pair until its map's cells are drawn."""
    page.locator("#view td a").first.wait_for()
    page.wait_for_function("document.querySelector('#status').innerText === ''")
    began = time.perf_counter()
    page.locator("#view td a").first.click()
    page.locator(".plot .hm image").first.wait_for(state="attached")
    return time.perf_counter() - began


if __name__ == "__main__":
    parts: dict[str, Part] = {"starting": starting, "first_page": first_page}
    parts |= with_data(own_pairs=own_pairs)
    if "own_pairs" in parts and CHROMIUM:
        parts["in_browser"] = in_browser
    main(parts, at_most=AT_MOST)
