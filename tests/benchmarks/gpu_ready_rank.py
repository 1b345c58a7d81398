"""A rank program: what the engine holds on one rank, and on two a DPO in bf16 that stays put."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import torch

from dynolab import distributed
from dynolab.data.batches import collate
from dynolab.data.encode import Encoded
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.training.deepspeed_engine import DeepSpeedEngine, init_ranks
from tests.benchmarks.pythia import pythia
from tests.training.small import make_files, metrics, run_small, settings

SMALL = {"vocab_size": 512, "hidden_size": 768, "intermediate_size": 3072}


def held_bytes() -> dict[str, float]:
    """Bytes of all tensors after a step, by parameter of the model."""
    before = _tensor_bytes()
    model = pythia(**SMALL)
    config = settings(
        objective={"name": "sft"},
        optimizer={"name": "adamw"},
        engine={"kind": "deepspeed", "ranks": 1},
    )
    engine = DeepSpeedEngine(ResponseLogits(model), config)
    batch = collate([Encoded(tuple(range(3, 19)), 8)] * 2, 0)
    for _ in range(config.accumulation):
        engine.backward(-token_logps(engine.logits(batch), batch).sum())
    # Before the step, whose gradients are freed after it.
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    engine.step(1e-6)
    size = sum(parameter.numel() for parameter in model.parameters())
    held = _tensor_bytes() - before
    still = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    return {"bytes_per_parameter_zero0_one_rank": (held - still + gradients) / size}


def _tensor_bytes() -> int:
    gc.collect()
    storages = {
        thing.untyped_storage().data_ptr(): thing.untyped_storage().nbytes()
        for thing in gc.get_objects()
        if isinstance(thing, torch.Tensor)
    }
    return sum(storages.values())


def margin(folder: Path) -> dict[str, float]:
    """Largest margin of six steps that change nothing: two passes over the rows."""
    if distributed.rank() == 0:
        make_files(folder)
    distributed.barrier()
    config = settings(
        engine={"kind": "deepspeed", "ranks": 2, "dtype": "bf16"},
        optimizer={"name": "sgd", "learning_rate": 1e-12},
        record_steps=[],
        checkpoint_every=0,
    )
    lines = metrics(run_small(folder, folder / "run", config))
    margins = [abs(line["train/margin"]) for line in lines if "train/margin" in line]
    return {
        "bf16_margin_at_step_0": max(margins[: len(margins) // 2]),
        "bf16_margin_in_second_pass": max(margins[len(margins) // 2 :]),
    }


def main() -> None:
    folder = Path(json.loads(Path(sys.argv[1]).read_text())["folder"])
    init_ranks()
    figures = held_bytes() if distributed.world_size() == 1 else margin(folder)
    if distributed.rank() == 0:
        (folder / "figures.json").write_text(json.dumps(figures))
    distributed.barrier()


if __name__ == "__main__":
    main()
