"""README and manual: `python -m tests.benchmarks.manual`. Keys:

- `readme_lines`: lines of the README;
- `readme_blocks`, `readme_blocks_run`: its commands, settings and programs, and how many of them
  are taken or run as they stand;
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

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BLOCKS = r"^```(?:python|yaml)$|^    (?:dynolab|make|pip) "
TAKEN = ["tests/flows/test_readme.py", "tests/library/test_wheel.py::test_the_examples_run"]


def tests_pass() -> bool:
    """Whether all commands and settings are taken, and all programs run."""
    command = [sys.executable, "-m", "pytest", "-q", *TAKEN]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def warnings_of_build() -> int:
    """Warnings of a build from scratch, of links that lead nowhere among them."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "warnings"
        command = [sys.executable, "-m", "sphinx", "-q", "-E", "-w", log, "docs", f"{folder}/html"]
        subprocess.run(command, cwd=ROOT, check=True)
        return len(log.read_text().splitlines()) if log.exists() else 0


def main() -> None:
    """Counts and prints."""
    text = README.read_text()
    blocks = len(re.findall(BLOCKS, text, re.MULTILINE))
    run = tests_pass()
    figures = {
        "readme_lines": len(text.splitlines()),
        "readme_blocks": blocks,
        "readme_blocks_run": blocks * run,
        "notebooks_run": len(list((ROOT / "examples").glob("*.ipynb"))) * run,
        "docs_pages": len([p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts]),
        "docs_broken_links": warnings_of_build(),
    }
    report(
        figures,
        at_most={"readme_lines": 150, "docs_broken_links": 0},
        at_least={"readme_blocks_run": blocks, "notebooks_run": 4},
    )


if __name__ == "__main__":
    main()
