"""Checks this machine's GPUs: `make check-gpu`, or `python -m tests.gpu.check [CHECK...]`.

Each check runs in a process of its own for a limited time, so that none ends the others; all end
within twenty minutes. Writes
`gpu.html` and `gpu.json` into the folder of reports; the exit code is 1 if a bound was missed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tasks.runtime.system.computing import COMPUTING
from tasks.runtime.system.settings import Settings
from tests.gpu.check.every import CHECKS
from tests.gpu.check.machine import facts, gpu_count
from tests.gpu.check.outcome import NO_GPU, Check, Checked, Ended, count, judge
from tests.gpu.check.page import write
from tests.gpu.compiled_guard import compiled_guard, compiler

# transformers loads weights in threads of its own, which the pretended GPU does not see.
LIMIT_SECONDS, CHECK_SECONDS = 20 * 60.0, 5 * 60.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DEACTIVATE_ASYNC_LOAD": "1"}


def main(*names: str) -> None:
    began, checked = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="dynolab-check-") as scratch:
        guard = None
        if not gpu_count() and compiler() is not None:
            guard = compiled_guard(Path(scratch))
        for name in names or CHECKS:
            left = LIMIT_SECONDS - (time.monotonic() - began)
            checked.append(run(CHECKS[name], Path(scratch), guard, left))
            print(_line(checked[-1]), flush=True)
    folder = Settings.from_environment().home / "reports"
    write(checked, facts(), time.monotonic() - began, folder)
    print(f"{folder / 'gpu.html'} and gpu.json show all figures")
    sys.exit(bool(count(checked)["missed"]))


def run(check: Check, scratch: Path, guard: Path | None, left: float) -> Checked:
    """Runs a check in a process of its own, on the pretended GPU if the guard is given.

    **Arguments:** `left`: seconds until all checks should have ended.
    """
    gpus = gpu_count()
    if left <= 0:
        return judge(check, None, gpus, f"{LIMIT_SECONDS / 60:g} minutes are over")
    pretends = not gpus and check.stand_in == "pretended GPU"
    if not gpus and (check.stand_in is None or (pretends and guard is None)):
        why = f"{NO_GPU}, and no C++ compiler for the pretended one" if pretends else NO_GPU
        return judge(check, None, gpus, why)
    folder = scratch / check.name
    folder.mkdir()
    arguments = [check.name, str(folder), *([str(guard)] if pretends else [])]
    return judge(check, ended(arguments, folder, min(CHECK_SECONDS, left)), gpus)


def ended(arguments: list[str], folder: Path, limit: float) -> Ended:
    """Waits up to `limit` seconds for a check's process; its ranks end with it."""
    began, log = time.monotonic(), folder / "log"
    error: str | None = None
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tests.gpu.check.one", *arguments],
                env={**COMPUTING, **os.environ, **OFFLINE},
                stdout=output,
                stderr=output,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            error = f"it took longer than {limit:g} s"
        else:
            if done.returncode:
                error = f"its process ended with code {done.returncode}"
    values = _read(folder / "figures.json") or {}
    if error is not None:
        print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
        error = str(_read(folder / "error.json") or error)
    return Ended(values=values, seconds=time.monotonic() - began, error=error)


def _read(file: Path) -> object:
    return json.loads(file.read_text()) if file.exists() else None


def _line(check: Checked) -> str:
    found = ", ".join(f"{each} {verdict}" for verdict, each in count([check]).items() if each)
    return f"{check.name}: {found} ({check.seconds:.0f} s)"


if __name__ == "__main__":
    main(*sys.argv[1:])
