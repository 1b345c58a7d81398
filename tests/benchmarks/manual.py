"""README and manual: `python -m tests.benchmarks.manual`. Keys:

- `readme_lines`: lines of the README;
- `readme_blocks`: its programs, files of settings and commands of `dynolab`; `readme_blocks_run`:
  how many of them run as they stand (`make` and `pip` are timed by `first_minutes`);
- `notebooks_run`: notebooks of `examples` whose cells run;
- `docs_pages`, `docs_broken_links`: pages of the manual, and warnings of its build;
- `bars`: [bound, met].
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.figures import report
from tests.flows.lab import ROOT
from tests.flows.test_readme_runs import COMMANDS, README, SETTINGS
from tests.library.test_wheel import NOTEBOOKS, PROGRAMS

BLOCKS = len(re.findall(r"^```\w+$|^    dynolab ", README, re.MULTILINE))
EXAMPLES = "tests/library/test_wheel.py::test_the_examples_run"
AS_THEY_STAND = "tests/flows/test_readme_runs.py"
TAKEN = "tests/flows/test_readme.py"
AT_MOST = {"readme_lines": 150, "docs_broken_links": 0}
AT_LEAST = {"readme_blocks_run": BLOCKS, "notebooks_run": 4}


def passes(*tests: str) -> bool:
    """Whether tests pass, in a process of their own."""
    command = [sys.executable, "-m", "pytest", "-q", *tests]
    return subprocess.run(command, cwd=ROOT, check=False, stdout=sys.stderr).returncode == 0


def warnings_of_build() -> int:
    """Warnings of a build from scratch, of links that lead nowhere among them."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "warnings"
        command = [sys.executable, "-m", "sphinx", "-q", "-E", "-w", log, "docs", f"{folder}/html"]
        subprocess.run(command, cwd=ROOT, check=True)
        return len(log.read_text().splitlines()) if log.exists() else 0


def manual() -> dict[str, float]:
    """All figures."""
    programs = sum(name.startswith("README_") for name in PROGRAMS)
    examples_run, all_run = passes(EXAMPLES), passes(TAKEN, AS_THEY_STAND)
    return {
        "readme_lines": len(README.splitlines()),
        "readme_blocks": BLOCKS,
        "readme_blocks_run": programs * examples_run + len(COMMANDS + SETTINGS) * all_run,
        "notebooks_run": len(NOTEBOOKS) * examples_run,
        "docs_pages": len([p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts]),
        "docs_broken_links": warnings_of_build(),
    }


if __name__ == "__main__":
    report(manual(), at_most=AT_MOST, at_least=AT_LEAST)
