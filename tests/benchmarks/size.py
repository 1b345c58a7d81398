"""What training at size costs, and how far its plans are from it.

    python -m tests.benchmarks.size

Prints one JSON object on its last line.

- `checkpointing_memory_ratio`: the most bytes of tensors alive in a forward and backward of four
  rows of 1,024 tokens with activation checkpointing, over those without, the model's weights aside;
  `checkpointing_time_ratio`: the same of seconds.
- `checkpointing_gradient_difference`: the largest of their gradients', relative to the largest.
- `memory_plan_error`: how far `--plan` is from the most bytes of tensors on a rank, the largest
  relative error over trainings of random shapes of 10M to 160M parameters on 1 and 2 ranks, ZeRO 0
  to 3, fp32 and bf16 (`tests.benchmarks.planned`); `time_plan_error`: the same of their steps'
  seconds; the plan has the reference's, too.
- `store_plan_error`: the same of the store of a whole study with recorded steps and ledger, at 10M;
  `store_bytes_over_weights`: that store over the model's weights; `upload_bytes_over_weights`: all
  that was sent to it, over an S3 server's address; `records_bytes_over_weights`: the tensors of
  recorded steps, which this machine's cache has.
- `host_copies_rank0`: main memory that rank 0 of two takes while it loads 160M weights and starts,
  over the weights (`tests.benchmarks.start_rank`), on CPUs, where training itself is in it.

A part alone, by its function's name: `python -m tests.benchmarks.size study`. Only so:

- `study_160m`: `study_160m_gb`, main memory of all processes of a study of 160M parameters on HH's
  rows with ledger, 2 ranks, where a process gets 20 GB; `study_160m_planned_gb`: the plan's.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext

import torch
from torch import Tensor

from dynolab.costs.live_bytes import LiveBytes
from dynolab.data.batches import collate
from dynolab.data.encode import Encoded
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.training.activations import activations_checkpointed, prepare_checkpointing
from tests.benchmarks import planned
from tests.benchmarks.figures import gather, report
from tests.benchmarks.pythia import pythia

ROWS, LENGTH, PROMPT = 4, 1024, 960


def checkpointing() -> dict[str, float]:
    """One model with and without."""
    model = pythia().eval()
    logits = ResponseLogits(model)
    prepare_checkpointing(model)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (ROWS, LENGTH), generator=generator).tolist()
    batch = collate([Encoded(tuple(row), PROMPT) for row in ids], 0)

    def gradients(checkpointed: bool) -> list[Tensor]:
        with activations_checkpointed(model) if checkpointed else nullcontext():
            loss = -logits(batch, token_logps).sum()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    figures: dict[str, list[float]] = {"memory": [], "time": []}
    results = []
    for checkpointed in (False, True):
        with LiveBytes() as live:
            results.append(gradients(checkpointed))
        began = time.perf_counter()
        gradients(checkpointed)
        figures["memory"].append(live.most)
        figures["time"].append(time.perf_counter() - began)
    largest = max(float(g.abs().max()) for g in results[0])
    apart = max(float((a - b).abs().max()) for a, b in zip(*results, strict=True))
    ratios = {f"checkpointing_{name}_ratio": own / plain for name, (plain, own) in figures.items()}
    return ratios | {"checkpointing_gradient_difference": apart / largest}


def main() -> None:
    parts = [checkpointing, planned.trainings, planned.study, planned.started]
    if wanted := sys.argv[1:]:
        parts = [part for part in (*parts, planned.study_160m) if part.__name__ in wanted]
    figures = gather(parts)
    report(
        figures,
        at_least={},
        at_most={
            "checkpointing_memory_ratio": 0.6,
            "checkpointing_gradient_difference": 1e-6,
            "memory_plan_error": 0.15,
            "store_plan_error": 0.05,
            "store_bytes_over_weights": 3,
            "host_copies_rank0": 1.2,
            "study_160m_gb": 20,
        },
    )


if __name__ == "__main__":
    main()
