"""What kills leave of the accounts of a training.

    python -m tests.fidelity.kills FOLDER [--resume]

runs a training of TRL with an account at every step and a checkpoint at every second one, and
prints the number of each step whose account is made.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from dynolab.integrations.forces import ForceCallback
from dynolab.results.ledger_reader import read_ledger
from tests.benchmarks.figures import ROOT
from tests.integrations.test_trained import dpo

STEPS, KILLS = 12, 5


class Counting(TrainerCallback):
    """Prints a step's number when its account is made."""

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        print(state.global_step - 1, flush=True)


def train(folder: Path, *, resume: bool) -> None:
    trainer = dpo(folder, max_steps=STEPS, save_strategy="steps", save_steps=2)
    trainer.add_callback(ForceCallback(trainer, every=1))
    trainer.add_callback(Counting())
    trainer.train(resume_from_checkpoint=resume)


def started(folder: Path, *more: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.fidelity.kills", str(folder), *more]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    )


def is_kept(folder: Path, last: int) -> bool:
    """Whether every account is there when a training is killed after a step, and when it ends."""
    with started(folder) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == str(last):
                break
        process.kill()
    ledger = read_ledger(folder / "ledger", folder / "ledger")
    # The next account may have been made before the process was gone.
    after_kill = ledger.steps[: last + 1] == [*range(last + 1)]
    is_shown = (folder / "ledger" / "ledger.html").exists()
    started(folder, "--resume").wait()
    ended = read_ledger(folder / "ledger", folder / "ledger").steps == [*range(STEPS)]
    return after_kill and is_shown and ended


def measure(home: Path) -> dict[str, float]:
    """`accounts_kept_after_kill`: share of kills, each after a random step, that lose none."""
    draw = random.Random(0)
    kept = [is_kept(home / f"kill-{n}", draw.randrange(2, STEPS - 1, 2)) for n in range(KILLS)]
    return {"accounts_kept_after_kill": sum(kept) / KILLS}


if __name__ == "__main__":
    train(Path(sys.argv[1]), resume="--resume" in sys.argv)
