"""What rows cost that no training draws: `dynolab init` on many, and a training on few of them.

    python -m tests.benchmarks.rows

Pairs have a prompt and two answers of about 100 words each, the model two layers; each measure has
a process of its own. Prints one JSON object on its last line.

- `init_100k_rows_s`: wall seconds of `dynolab init` on 100,000 pairs; `init_bytes_per_row`: most
  resident memory above that on 10,000, over the difference in rows.
- `undrawn_time_exponent`, `undrawn_memory_exponent`: the power of the number of rows, 20,000 and
  200,000, with which a training on 1,600 of them grows, in processor time and in most resident
  memory; `undrawn_plan_exponent`: of the tokens that a plan counts for it.
"""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from dynolab.costs.machines import this_machine
from dynolab.data.rows import write_rows
from dynolab.data.sources.load import DataConfig
from dynolab.training.config import TrainConfig
from dynolab.training.job import TrainJob
from tasks.ranks.train import run
from tasks.shared.cost_inputs import Inputs
from tasks.shared.costs import Costs
from tasks.training import check_rows
from tests.benchmarks.figures import ROOT, main, timed
from tests.benchmarks.models import pythia
from tests.fidelity.tokenizers import text_tokenizer

TEXT = "Once upon a time there was a small red boat on the sea how does it turn in the air"
FEW, MANY = 20_000, 200_000
CONFIG = TrainConfig.model_validate(
    {
        "objective": {"name": "dpo"},
        "optimizer": {"name": "adamw", "learning_rate": 1e-4},
        "engine": {"kind": "plain", "ranks": 1},
        "steps": 200,
        "batch_size": 8,
        "micro_batch_size": 4,
    }
)
AT_MOST = {
    "init_100k_rows_s": 60.0,
    "init_bytes_per_row": 4000.0,
    "undrawn_time_exponent": 0.05,
    "undrawn_memory_exponent": 0.05,
    "undrawn_plan_exponent": 0.05,
}


class Took(NamedTuple):
    """Wall and processor seconds of a process, and its most resident bytes."""

    wall: float
    cpu: float
    peak: int


def process(*arguments: str) -> Took:
    """Runs a module of Python to its end."""
    started = subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT)
    wall, (_, status, usage) = timed(lambda: os.wait4(started.pid, 0))
    assert not status, f"{' '.join(arguments)} failed"
    return Took(wall, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss)


def pairs(file: Path, count: int) -> Path:
    """Writes pairs of random words."""
    rng = random.Random(0)

    def text() -> str:
        return " ".join(["", *rng.choices(TEXT.split(), k=rng.randint(80, 120))])

    sides = ("prompt", "chosen", "rejected")
    write_rows(file, ({"id": str(n)} | {side: text() for side in sides} for n in range(count)))
    return file


def model(home: Path) -> Path:
    """A small one, with a byte-level tokenizer."""
    folder = home / "bytes"
    if not folder.exists():
        tokens = len(text_tokenizer("bytes", home))
        pythia(
            vocab_size=tokens, hidden_size=32, intermediate_size=64, num_hidden_layers=2
        ).save_pretrained(folder)
    return folder


def init(home: Path) -> dict[str, float]:
    """The command, on two sizes."""
    took = {}
    for count in (10_000, 100_000):
        rows = str(pairs(home / f"{count}.jsonl", count))
        file = str(home / f"rows-{count}.yaml")
        took[count] = process("dynolab", "init", file, "--model", str(model(home)), "--data", rows)
    few, many = took.values()
    return {
        "init_100k_rows_s": many.wall,
        "init_bytes_per_row": (many.peak - few.peak) / 90_000,
    }


def undrawn(home: Path) -> dict[str, float]:
    """A training and its plan, on two sizes."""
    took, tokens = [], []
    for count in (FEW, MANY):
        rows, output = pairs(home / f"{count}.jsonl", count), home / f"output-{count}"
        job = TrainJob(
            config=CONFIG,
            model=model(home),
            examples=rows,
            output=output,
            resume_out=home / "states",
        )
        (home / "job.json").write_text(job.model_dump_json())
        took.append(process("tests.benchmarks.rows", str(home / "job.json")))
        data = DataConfig(source="file", path=str(rows), probe_pairs=0)
        costs = Costs(Inputs(str(job.model), None, data), this_machine())
        tokens.append(costs.training(CONFIG).tokens)
    few, many = took
    return {
        "undrawn_time_exponent": exponent(few.cpu, many.cpu),
        "undrawn_memory_exponent": exponent(few.peak, many.peak),
        "undrawn_plan_exponent": exponent(*tokens),
    }


def exponent(few: float, many: float) -> float:
    """The power of the number of rows with which a figure grows."""
    return math.log(many / few) / math.log(MANY / FEW)


if __name__ == "__main__":
    if sys.argv[1:] and not sys.argv[1].startswith("-"):
        job = TrainJob.model_validate_json(Path(sys.argv[1]).read_text())
        check_rows(job)
        run(job)
    else:
        main({"init": init, "undrawn": undrawn}, at_most=AT_MOST)
