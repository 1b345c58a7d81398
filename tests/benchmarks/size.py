"""What training at size costs, and how far its plan is from it.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.size

FOLDER holds `models/pythia-tokenizer`. Prints one JSON object on its last line.

- `checkpointing_memory_ratio`: the most bytes of tensors alive in a forward and backward of four
  rows of 1,024 tokens with activation checkpointing, over those without, the model's weights aside;
  `checkpointing_time_ratio`: the same of seconds.
- `checkpointing_gradient_difference`: the largest of their gradients', relative to the largest.
- `memory_plan_error`: how far `--plan` is from the most bytes of tensors on a rank, the largest
  relative error over trainings of random shapes of 10M to 160M parameters on 1 and 2 ranks, ZeRO 0
  to 3, fp32 and bf16; `time_plan_error`: the same of their steps' seconds; the plan has the
  reference's, too.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
    errors: dict[str, list[float]] = {"memory_plan_error": [], "time_plan_error": []}
    machine = this_machine()
    rows = home / "rows.jsonl"
    write_rows(rows, random_pairs(WORDS, LENGTHS, 16))
    for number, (shape, engine) in enumerate(SETTINGS):
        model = home / shape
        if not model.exists():
            pythia(**SHAPES[shape]).save_pretrained(model)
            pythia_tokenizer().save_pretrained(model)
        config = TrainConfig.model_validate(
            {
                "objective": {"name": "dpo"},
                "optimizer": {"name": "adamw", "learning_rate": 1e-6},
                "engine": {"kind": "deepspeed", **engine},
                "steps": 2,
                "batch_size": 4 * engine["ranks"],
                "micro_batch_size": 4,
                "overlong": "truncate_left",
            }
        )
        data = DataConfig(source="file", path=str(rows), heldout_rows=0, probe_pairs=0)
        planned = Costs(Inputs(str(model), None, data), machine).training(config)
        most, took = measured(home / str(number), config, model, rows)
        errors["memory_plan_error"].append(planned.rank_bytes / most - 1)
        errors["time_plan_error"].append(planned.hours * 3600 / took - 1)
        print(shape, engine, {name: own[-1] for name, own in errors.items()}, flush=True)
    return {name: max(map(abs, own)) for name, own in errors.items()}


def measured(folder: Path, config: TrainConfig, model: Path, rows: Path) -> tuple[int, float]:
    """Most bytes of tensors on any rank, and the seconds of the training itself."""
    folder.mkdir()
    output, states = folder / "output", folder / "states"
    job = TrainJob(config=config, model=model, examples=rows, output=output, resume_out=states)
    (folder / "job.json").write_text(job.model_dump_json())
    launch_ranks(
        "tests.benchmarks.size",
        folder / "job.json",
        ranks=config.engine.ranks,
        logs=folder / "logs",
        environment={"PYTHONPATH": str(ROOT)},
        while_running=lambda: None,
    )
    most = max(int(file.read_text()) for file in folder.glob("most-*"))
    lines = read_rows(output / "metrics.jsonl", MetricsLine)
    return most, sum(config.batch_size / line.metrics["train/examples_per_s"] for line in lines)


def rank(file: Path) -> None:
    """One rank of a training, which leaves the most bytes of its tensors."""
    rank = os.environ.get("RANK", "0")  # the group ends with the run
    with LiveBytes() as live:
        run(TrainJob.model_validate_json(file.read_text()))
    (file.parent / f"most-{rank}").write_text(json.dumps(live.most))


if __name__ == "__main__":
    if sys.argv[1:] and not sys.argv[1].startswith("-"):
        rank(Path(sys.argv[1]))
    else:
        main({"checkpointing": checkpointing, "plans": plans}, at_most=AT_MOST)
