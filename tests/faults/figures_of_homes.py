"""Figures of homes, stores and Slurm for `tests.benchmarks.faults`: each function tries one kind of
thing in an empty folder, or reads what tests recorded, and returns its figures by name."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dynolab.store.verify import remove, verify
from tasks.runtime.servers.service import MLFLOW, Service
from tasks.runtime.servers.services import Services
from tasks.runtime.servers.standing import running_services
from tasks.runtime.system.secret_files import login_token, own_folder
from tests.flows.analysed import Analysed
from tests.flows.lab import ROOT
from tests.store.results import contents

COMMANDS = (["verify"], ["study", "--plan"], ["reconcile"])
NOBODY = 65534


def homes_left_as_found(folder: Path) -> dict[str, bool]:
    """Whether every existing folder that others may enter is refused, with its mode as it was."""
    left = []
    for mode in (0o755, 0o777, 0o1777, 0o2770):
        home = folder / f"mode-{mode:o}"
        home.mkdir()
        (home / "file").write_text("of others")
        home.chmod(mode)
        for words in COMMANDS:
            refused = _refused(home, words, "chmod 700")
            same = stat.S_IMODE(home.stat().st_mode) == mode and len(list(home.iterdir())) == 1
            left.append(refused and same)
    return {"homes_left_as_found": all(left)}


def strangers_refused(folder: Path) -> dict[str, bool]:
    """Whether what others prepared is refused, and another program at a server's port sent nothing.

    What belongs to another user can be prepared by root alone.
    """
    prepared = [("token", 0o644, False), ("key", 0o640, False)]
    if os.geteuid() == 0:
        prepared += [("token", 0o600, True), ("key", 0o600, True), ("", 0o700, True)]
    refused = []
    for name, mode, is_others in prepared:
        home = own_folder(folder / f"{name}-{mode:o}-{is_others}")
        if name:
            (home / name).write_text("ab" * 32)
        (home / name).chmod(mode)
        if is_others:
            os.chown(home / name, NOBODY, NOBODY)
        words = ["-c", _SIGN] if name == "key" else ["reconcile"]
        refused.append(_refused(home, words, "delete it" if name else "another user"))
    home = own_folder(folder / "taken")
    login_token(home)
    taken = Service(MLFLOW, "http://127.0.0.1:1", os.getpid(), home / "log")
    (home / "services.json").write_text('{"mlflow": {"url": "http://127.0.0.1:1", "pid": 1}}')
    with Services(home, {MLFLOW: taken}):
        refused.append(running_services(home) == {})
    return {"strangers_refused": all(refused)}


_SIGN = """
import os, pathlib
from dynolab.errors import ConfigError
from tasks.runtime.system.secret_files import signing_key
try:
    signing_key(pathlib.Path(os.environ["DYNOLAB_HOME"]))
except ConfigError as error:
    raise SystemExit(f"{error}")
"""


def _refused(home: Path, words: Sequence[str], remedy: str) -> bool:
    """Whether a command refuses a home with one message that has the remedy."""
    program = [] if words[0] == "-c" else ["-m", "flows.cli"]
    done = subprocess.run(
        [sys.executable, *program, *words],
        cwd=ROOT,
        env=os.environ | {"DYNOLAB_HOME": str(home)},
        capture_output=True,
        text=True,
    )
    return done.returncode != 0 and remedy in done.stderr and "Traceback" not in done.stderr


def verify_finds(folder: Path, seed: int = 0) -> dict[str, float]:
    """Of the files of a real store, one bit flipped in each in turn: the share that is found."""
    made, chance = Analysed(folder / "verified"), random.Random(seed)
    store, root = made.platform.store, folder / "verified" / "store"
    found, tried = 0, 0
    for name, content in contents(root / "stages").items():
        if "/logs/" in name:  # of no result
            continue
        stage, key, *_ = name.split("/")
        flipped = bytearray(content)
        flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        (root / "stages" / name).write_bytes(flipped)
        (checked,) = verify(store, [store.place(stage, key)])
        found, tried = found + bool(checked.damaged), tried + 1
        (root / "stages" / name).write_bytes(content)
    return {"verify_finds": found / tried, "verify_files": tried}


def recomputed_beyond_need(folder: Path) -> dict[str, int]:
    """Each result damaged and removed in turn: stages that are then computed again, but neither
    were damaged nor read something that has changed."""
    home = folder / "mended"
    before, beyond = Analysed(home), 0
    for name in ("data", "base", "sft"):
        result = getattr(before, name)
        store = before.platform.store
        place = store.place(result.stage, result.key)
        file = next(iter(before.folder(result).rglob("*.json*")))
        file.write_bytes(file.read_bytes()[:-1] + b"x")
        (checked,) = verify(store, [place])
        assert remove(store, checked) == [place.path]
        after = Analysed(home)
        changed = {
            stage
            for stage in ("data", "base", "sft")
            if getattr(after, stage).digest != getattr(before, stage).digest
        }
        reads = {"data": set(), "base": {"data"}, "sft": {"data", "base"}}
        for stage, inputs in reads.items():
            needed = stage == name or bool(inputs & changed)
            beyond += not getattr(after, stage).cached and not needed
        before = after
    return {"recomputed_beyond_need": beyond}


def of_slurm(tests: Sequence[dict[str, str]]) -> dict[str, int | bool]:
    """What `test_slurm.py` recorded: faults after which a job ended as it should, and whether all
    ended with the bits of an undisturbed one; nothing where no Slurm could be started."""
    faults = [test for test in tests if "slurm_fault" in test]
    if not faults:
        return {}
    identical = [fault.get("resume_identical") == "true" for fault in faults]
    return {
        "slurm_faults_survived": sum(fault["end"] == "passed" for fault in faults),
        "bits_identical": all(identical),
    }
