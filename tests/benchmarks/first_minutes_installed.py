"""How long README's two installations take, each in a place of its own; both download."""

from __future__ import annotations

import subprocess
import sys
import venv
from functools import partial
from pathlib import Path

from tests.benchmarks.figures import seconds
from tests.flows.lab import ROOT

EXTRAS = "[train,report]"


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)


def cloned(folder: Path) -> Path:
    """A clean checkout of what is committed."""
    run("git", "clone", "--quiet", ROOT, folder)
    return folder


def install(folder: Path) -> dict[str, float]:
    """The library alone: its wheel, with all that it needs, in a new environment."""
    checkout = cloned(folder / "to-build")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", folder / "wheel", checkout)
    (wheel,) = (folder / "wheel").iterdir()
    venv.create(folder / "environment", with_pip=True)
    python = folder / "environment" / "bin" / "python"
    took = seconds(partial(run, python, "-m", "pip", "install", "--quiet", f"{wheel}{EXTRAS}"))
    run(python, "-c", "import dynolab; dynolab.force_map")
    return {"install_s": took}


def setup(folder: Path) -> dict[str, float]:
    """`make setup` in a new checkout."""
    checkout = cloned(folder / "to-set-up")
    return {"setup_s": seconds(partial(run, "make", "--directory", checkout, "setup"))}
