"""Work folders: one's own is deleted, a dead process's as well, a living one's never."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.runtime.system.scratch import scratch_folder

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import pathlib, sys, time
from tasks.runtime.system.scratch import scratch_folder
with scratch_folder(pathlib.Path(sys.argv[1]), sys.argv[2]) as folder:
    (folder / "file").write_text("work")
    print("holds", flush=True)
    time.sleep(600)
"""


def test_it_is_deleted_whatever_happens(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), scratch_folder(tmp_path / "scratch", "a") as folder:
        (folder / "file").write_text("work")
        raise RuntimeError
    assert list((tmp_path / "scratch").iterdir()) == []


def test_what_the_killed_leave_is_removed_and_what_the_living_use_is_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    holders = [
        subprocess.Popen([*command, name], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for name in ("killed", "living")
    ]
    try:
        for holder in holders:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "holds\n"
        holders[0].send_signal(signal.SIGKILL)
        holders[0].wait()
        assert (tmp_path / "killed" / "file").exists()
        with scratch_folder(tmp_path, "next"):
            assert not (tmp_path / "killed").exists()
            assert (tmp_path / "living" / "file").exists()
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
