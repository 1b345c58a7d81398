"""A training rank that measures how long its loop waits for resume states.

    python -m tests.benchmarks.stall_ranks job.json

The file that STALL_FILE names gets rank 0's seconds: of the loop, of the waiting within it, and how
often it waited.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from dynolab.training import loop
from dynolab.training.job import TrainJob
from tasks.ranks.train import run


def main() -> None:
    waits: list[float] = []
    ends: dict[str, float] = {}
    save, step, finish = loop.save_state, loop.Trainer._step, loop.Trainer._finish

    def timed_save(*arguments: Any) -> None:
        began = time.perf_counter()
        save(*arguments)
        waits.append(time.perf_counter() - began)

    def first_step(*arguments: Any) -> None:
        ends.setdefault("first", time.perf_counter())
        step(*arguments)

    def last_step(*arguments: Any) -> None:
        ends["last"] = time.perf_counter()
        finish(*arguments)

    loop.save_state = timed_save
    loop.Trainer._step = first_step  # type: ignore[method-assign]
    loop.Trainer._finish = last_step  # type: ignore[method-assign]
    run(TrainJob.model_validate_json(Path(sys.argv[1]).read_text()))
    if os.environ["RANK"] == "0":  # the ranks' group has ended
        stall = {"loop": ends["last"] - ends["first"], "waiting": sum(waits), "times": len(waits)}
        Path(os.environ["STALL_FILE"]).write_text(json.dumps(stall))


if __name__ == "__main__":
    main()
