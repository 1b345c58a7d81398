"""Programs of tests, started over ranks as people start theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_ranks(module: str, folder: Path, ranks: int, **environment: str) -> None:
    """Runs a module over ranks of this host, on CPUs; fails with what the ranks printed last.

    **Arguments:** `folder`: the module's one argument.
    """
    starter = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*starter, f"--nproc-per-node={ranks}", "-m", module, str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=Path(__file__).parents[1],
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | environment,
    )
    assert done.returncode == 0, done.stderr[-6000:]
