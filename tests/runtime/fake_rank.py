"""A rank program without torch: does what its job.json says for each rank.

job.json: {"folder": ..., "ranks": {"0": ["sleep"], ...}}; actions run in order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dynolab.errors import ConfigError

FOREVER_SECONDS = 120.0


def write_whole(file: Path, text: str) -> None:
    """Readers that poll see the whole text or no file."""
    part = file.with_suffix(".part")
    part.write_text(text)
    part.replace(file)


def act(action: str, folder: Path, rank: str) -> None:
    if action == "raise":
        raise RuntimeError(f"rank {rank} has a bug")
    if action == "refuse":
        raise ConfigError("rows", rank, "give others")
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "sleep":
        time.sleep(FOREVER_SECONDS)
    if action == "ignore-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if action == "lock":
        extensions = Path(os.environ["TORCH_EXTENSIONS_DIR"])
        extensions.mkdir(parents=True, exist_ok=True)
        (extensions / "lock").touch()
    if action == "helper":
        # In a session of its own: neither a process group nor a death signal reaches it.
        helper = subprocess.Popen(["sleep", str(FOREVER_SECONDS)], start_new_session=True)
        write_whole(folder / f"helper-{rank}", str(helper.pid))
    if action.startswith("wait-for-"):
        pattern, deadline = action.removeprefix("wait-for-"), time.monotonic() + 30
        while not any(folder.glob(pattern)):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    folder, rank = Path(job["folder"]), os.environ["RANK"]
    print(f"rank {rank} of {os.environ['WORLD_SIZE']} starts", flush=True)
    seen = {"pid": os.getpid(), "agent": os.getppid(), "environment": dict(os.environ)}
    write_whole(folder / f"rank-{rank}.json", json.dumps(seen))
    try:
        for action in job["ranks"][rank]:
            act(action, folder, rank)
    finally:
        write_whole(folder / f"left-{rank}", "")


if __name__ == "__main__":
    main()
