"""Training of every objective on the GPU, and going on from a resume state."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from dynolab.rollouts.rewards import ALLOWED
from tests.training.every_objective import ON_GROUPS, ON_ROWS, small_training
from tests.training.small import apart, make_files, make_job, run, state


def train_and_resume(name: str, folder: Path) -> None:
    os.environ[ALLOWED] = "tests.training.rewards"
    make_files(folder)
    config = small_training(name)
    whole = run(make_job(folder, folder / "whole", config))
    resumed = run(make_job(folder, folder / "resumed", config, resume_from=state(whole, 3)))
    assert apart(whole, resumed) == 0


def paths() -> Iterator[tuple[str, Callable[[Path], None]]]:
    for name in (*ON_ROWS, *ON_GROUPS):
        yield f"train {name}", partial(train_and_resume, name)
