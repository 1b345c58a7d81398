"""One micro-batch of a training: its loss and gradient, and what the step makes of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dynolab.rollouts.rewards import ALLOWED
from dynolab.training.loop import Trainer
from tests.gpu.log import LOG
from tests.training.every_objective import small_training
from tests.training.small import make_files, make_job, run

STEPS = 3


def count_micro_batch(name: str, folder: Path) -> dict[str, float]:
    """Waits and copies of a step with one micro-batch, the average over steps."""
    os.environ[ALLOWED] = "tests.training.rewards"
    make_files(folder)
    counts = {"waits": 0, "copies": 0}
    accumulate = Trainer._accumulate

    def counted(*args: Any) -> Any:
        before = LOG.waits.total(), LOG.copies.total()
        result = accumulate(*args)
        counts["waits"] += LOG.waits.total() - before[0]
        counts["copies"] += LOG.copies.total() - before[1]
        return result

    plain = {"steps": STEPS, "checkpoint_every": 0, "record_steps": []}
    size = small_training(name).batch_size
    config = small_training(name, micro_batch_size=size, **plain)
    with patch.object(Trainer, "_accumulate", counted):
        run(make_job(folder, folder / "trained", config))
    return {kind: count / STEPS for kind, count in counts.items()}


def paths() -> Iterator[tuple[str, Callable[[Path], dict[str, float]]]]:
    for name in ("dpo", "sft", "ipo mean", "sppo soft", "grpo", "online dpo"):
        yield name, partial(count_micro_batch, name)
