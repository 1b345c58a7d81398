"""`dynolab explore` on a home."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.flows.lab import ROOT


@contextmanager
def explorer(home: Path) -> Iterator[str]:
    """Serves the home's newest study until the block ends: what it prints to be opened."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "explore", "--port", "0"],
        cwd=ROOT,
        env=os.environ | {"DYNOLAB_HOME": str(home)},
        text=True,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[1]
    finally:
        process.terminate()
        assert process.wait(30) == 0
