"""What training at size costs, and how far its plan is from it.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.size

FOLDER holds `models/pythia-tokenizer`. Prints one JSON object on its last line.

- `checkpointing_memory_ratio`: the most bytes of tensors alive in a forward and backward of four
  rows of 1,024 tokens with activation checkpointing, over those without, the model's weights aside;
  `checkpointing_time_ratio`: the same of seconds.
- `checkpointing_gradient_difference`: the largest of their gradients', relative to the largest.
- `memory_plan_error`: how far `--plan` is from the most bytes of tensors on a rank, the largest
  relative error over trainings of random shapes of 10M to 160M parameters on 1 and 2 ranks, ZeRO 0
  to 3, fp32 and bf16; `sending_plan_error`: the same of the bytes that two ranks send.
- `plan_time_error`: how far the plan of a step's seconds on two ranks is from the processor time of
  one, at the ZeRO stage where it is largest. What other programs take of the machine is in neither.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from dynolab import distributed
from dynolab.costs.communication import sent_bytes
from dynolab.costs.machines import this_machine
from dynolab.costs.traced import LiveBytes
from dynolab.data.batches import collate
from dynolab.data.encode import Encoded
from dynolab.data.rows import read_rows, write_rows
from dynolab.data.sources.load import DataConfig
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.results.study import MetricsLine
from dynolab.training.adapters import activations_checkpointed, prepare_checkpointing
from dynolab.training.config import TrainConfig
from dynolab.training.job import TrainJob
from dynolab.training.loop import Trainer
from tasks.ranks.train import run
from tasks.runtime.launch.launcher import launch_ranks
from tasks.shared.cost_inputs import Inputs
from tasks.shared.costs import Costs
from tests.benchmarks.figures import ROOT, main, seconds
from tests.benchmarks.models import PYTHIA_160M, pythia, pythia_tokenizer, random_pairs

ROWS, LENGTH = 4, 1024
LENGTHS = (134, 61, 46)
"""Tokens of HH's prompts, chosen and rejected answers in the mean."""
WORDS = (" the", " a", " dog", " house", " tree", " run", " red")
"""Each a token."""
SHAPES = {
    "10m": {"hidden_size": 96, "num_hidden_layers": 4, "intermediate_size": 384},
    "30m": {"hidden_size": 256, "num_hidden_layers": 6, "intermediate_size": 1024},
    "160m": PYTHIA_160M,
}
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("10m", {"ranks": 1, "zero_stage": 0}),
    ("30m", {"ranks": 1, "zero_stage": 0}),
    *(("30m", {"ranks": 2, "zero_stage": stage}) for stage in range(4)),
    *(("30m", {"ranks": 2, "zero_stage": stage, "dtype": "bf16"}) for stage in (2, 3)),
    ("160m", {"ranks": 1, "zero_stage": 0}),
    ("160m", {"ranks": 2, "zero_stage": 2}),
]
"""Shapes, and the engine's settings that their training is measured with."""
AT_MOST = {
    "checkpointing_memory_ratio": 0.6,
    "checkpointing_gradient_difference": 1e-6,
    "memory_plan_error": 0.15,
    "sending_plan_error": 0.05,
    "plan_time_error": 0.25,
}


def checkpointing(_: Path) -> dict[str, float]:
    """One model with and without."""
    model = pythia().eval()
    logits = ResponseLogits(model)
    prepare_checkpointing(model)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (ROWS, LENGTH), generator=generator).tolist()
    batch = collate([Encoded(tuple(row), LENGTH - 64) for row in ids], 0)

    def gradients(checkpointed: bool) -> list[Tensor]:
        with activations_checkpointed(model) if checkpointed else nullcontext():
            loss = -logits(batch, token_logps).sum()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    memory, times, results = [], [], []
    for checkpointed in (False, True):
        with LiveBytes() as live:
            results.append(gradients(checkpointed))
        memory.append(live.most)
        times.append(seconds(lambda checkpointed=checkpointed: gradients(checkpointed)))
    apart = max(float((a - b).abs().max()) for a, b in zip(*results, strict=True))
    return {
        "checkpointing_memory_ratio": memory[1] / memory[0],
        "checkpointing_time_ratio": times[1] / times[0],
        "checkpointing_gradient_difference": apart / max(float(g.abs().max()) for g in results[0]),
    }


def plans(home: Path) -> dict[str, float]:
    """Largest relative errors of two steps of DPO with AdamW, which has its state in the second."""
    errors: dict[str, list[float]] = {"memory_plan_error": [], "sending_plan_error": []}
    for number, (shape, engine) in enumerate(SETTINGS):
        job = job_of(home, f"plan-{number}", shape, engine)
        inputs, config = inputs_of(job), job.config
        planned = Costs(inputs, this_machine()).training(config)
        ranks = launched(job)
        most = max(rank.most for rank in ranks)
        errors["memory_plan_error"].append(planned.rank_bytes / most - 1)
        if engine["ranks"] > 1:
            planned_bytes = sent_bytes(config, inputs.shape())
            sent = max(rank.sent for rank in ranks)
            errors["sending_plan_error"].append(planned_bytes / sent - 1)
        print(shape, engine, {name: values[-1:] for name, values in errors.items()}, flush=True)
    return {name: max(map(abs, values)) for name, values in errors.items()}


def times(home: Path) -> dict[str, float]:
    """Processor seconds of a rank's steps but the first, beside those of the plan."""
    errors = []
    for stage in range(4):
        engine = {"ranks": 2, "zero_stage": stage}
        job = job_of(home, f"time-{stage}", "10m", engine, steps=6)
        # The reference's scoring is no part of a step.
        cost = Costs(inputs_of(job), this_machine()).training(job.config, again=True)
        planned = cost.hours * 3600 / job.config.steps
        took = max(float(np.mean(rank.seconds[1:])) for rank in launched(job, timed=True))
        lines = read_rows(job.output / "metrics.jsonl", MetricsLine)
        by_clock = [8 / line.metrics["train/examples_per_s"] for line in lines]
        print(
            "ZeRO", stage, {"planned": planned, "took": took, "by the clock": by_clock}, flush=True
        )
        errors.append(planned / took - 1)
    return {"plan_time_error": max(map(abs, errors))}


def job_of(home: Path, name: str, shape: str, engine: dict[str, Any], steps: int = 2) -> TrainJob:
    """Steps of a model of some shape, which is made where it is not there yet."""
    folder, model, rows = home / name, home / shape, home / "rows.jsonl"
    folder.mkdir()
    write_rows(rows, random_pairs(WORDS, LENGTHS, 16))
    if not model.exists():
        pythia(**SHAPES[shape]).save_pretrained(model)
        pythia_tokenizer().save_pretrained(model)
    config = TrainConfig.model_validate(
        {
            "objective": {"name": "dpo"},
            "optimizer": {"name": "adamw", "learning_rate": 1e-6},
            "engine": {"kind": "deepspeed", **engine},
            "steps": steps,
            "batch_size": 4 * engine["ranks"],
            "micro_batch_size": 4,
            "overlong": "truncate_left",
        }
    )
    output, states = folder / "output", folder / "states"
    return TrainJob(config=config, model=model, examples=rows, output=output, resume_out=states)


def inputs_of(job: TrainJob) -> Inputs:
    """What a plan reads of it."""
    path = str(job.examples)
    data = DataConfig(source="file", path=path, heldout_rows=0, probe_pairs=0)
    return Inputs(str(job.model), None, data)


class Watched(BaseModel):
    """Of a rank: most bytes of tensors, bytes that its steps sent, their processor seconds."""

    most: int
    sent: float
    seconds: list[float]


def launched(job: TrainJob, *, timed: bool = False) -> list[Watched]:
    """Trains on a job's ranks. **Arguments:** `timed`: without what watches memory."""
    folder = job.output.parent
    (folder / "job.json").write_text(job.model_dump_json())
    launch_ranks(
        "tests.benchmarks.size",
        folder / "job.json",
        ranks=job.config.engine.ranks,
        logs=folder / "logs",
        environment={"PYTHONPATH": str(ROOT), **({TIMED: "1"} if timed else {})},
        while_running=lambda: None,
    )
    return [Watched.model_validate_json(file.read_text()) for file in folder.glob("watched-*")]


TIMED = "DYNOLAB_TEST_TIMED"

SENT = {"all_reduce": 2, "all_gather_into_tensor": 1, "reduce_scatter_tensor": 1}
"""Collective → how often a ring sends (R - 1) / R of its larger tensor."""


def rank(file: Path) -> None:
    """One rank of a training, which leaves its tensors' most bytes and what its steps send."""
    sent, in_step, step, leave = 0.0, False, Trainer._step, distributed.leave
    seconds, live = list[float](), LiveBytes()

    def counted(collective: Any, times: int) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal sent
            tensors = [
                value for value in (*arguments, *named.values()) if isinstance(value, Tensor)
            ]
            if in_step:
                share = 1 - 1 / distributed.world_size()
                sent += times * share * max(tensor.nbytes for tensor in tensors)
            return collective(*arguments, **named)

        return call

    def watched_step(*arguments: Any) -> None:
        nonlocal in_step
        in_step, began = True, time.process_time()
        step(*arguments)
        in_step = False
        seconds.append(time.process_time() - began)

    def write_and_leave() -> None:
        watched = Watched(most=live.most, sent=sent, seconds=seconds)
        (file.parent / f"watched-{distributed.rank()}").write_text(watched.model_dump_json())
        leave()  # ends the process

    for name, times in SENT.items():
        setattr(torch.distributed, name, counted(getattr(torch.distributed, name), times))
    with (
        patch.object(Trainer, "_step", watched_step),
        patch.object(distributed, "leave", write_and_leave),
        nullcontext() if TIMED in os.environ else live,
    ):
        run(TrainJob.model_validate_json(file.read_text()))


if __name__ == "__main__":
    if sys.argv[1:] and not sys.argv[1].startswith("-"):
        rank(Path(sys.argv[1]))
    else:
        main({"checkpointing": checkpointing, "plans": plans, "times": times}, at_most=AT_MOST)
