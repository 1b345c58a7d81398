"""How ready the code is for GPUs, as far as a machine without one can tell.

    python -m tests.benchmarks.gpu_ready

Prints one JSON object on its last line.

- `proxy_paths`: paths of the library that ran on the pretended GPU (`tests/gpu`);
  `proxy_violations`: operations on tensors of two devices, and paths that an error ended.
- `nondeterministic_ops`: lines of trainings that add in an order which a GPU does not repeat;
  `nondeterministic_ops_elsewhere`: the same of all other paths, where nothing is replayed.
- `syncs_per_micro_batch_dpo`, `blocking_copies_per_micro_batch`: how often a step of one
  micro-batch waits for the GPU, DPO, and for a transfer, the most of six objectives.
- `bytes_per_parameter_zero0_one_rank`: weights, gradients and AdamW's state that one rank holds.
- `bf16_margin_at_step_0`: largest DPO margin of a training in bf16 that does not move, in nats,
  while every row is new to it; `bf16_margin_in_second_pass`: afterwards, in other micro-batches.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from pathlib import Path

import torch

from dynolab import distributed
from dynolab.data.batches import collate
from dynolab.data.encode import Encoded
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.training.deepspeed_engine import DeepSpeedEngine, init_ranks
from tasks.runtime.launch.launcher import launch_ranks
from tests.benchmarks.figures import ROOT, gather, report
from tests.benchmarks.pythia import pythia
from tests.gpu.test_paths import walked
from tests.training.small import make_files, metrics, run_small, settings

SMALL = {"vocab_size": 512, "hidden_size": 768, "intermediate_size": 3072}


def walks() -> dict[str, float]:
    """The pretended GPU's."""
    groups = walked()
    steps = [path["figures"] for path in groups["micro_batch"].values()]
    paths = [path for name in ("training", "forces", "sampling") for path in groups[name].values()]
    training = {line for path in groups["training"].values() for line in path["unordered"]}
    anywhere = {line for path in paths for line in path["unordered"]}
    return {
        "proxy_paths": len(paths),
        "proxy_violations": sum(bool(path["error"]) + len(path["mixed"]) for path in paths),
        "nondeterministic_ops": len(training),
        "nondeterministic_ops_elsewhere": len(anywhere - training),
        "syncs_per_micro_batch_dpo": groups["micro_batch"]["dpo"]["figures"]["waits"],
        "blocking_copies_per_micro_batch": max(step["copies"] for step in steps),
    }


def ranks() -> dict[str, float]:
    """Of a rank alone, and of two in bf16."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as home:
        for count in (1, 2):
            folder = Path(home) / str(count)
            folder.mkdir()
            (folder / "job.json").write_text("{}")
            launch_ranks(
                "tests.benchmarks.gpu_ready",
                folder / "job.json",
                ranks=count,
                logs=folder / "logs",
                environment={"PYTHONPATH": str(ROOT)},
                while_running=lambda: None,
            )
            figures |= json.loads((folder / "figures.json").read_text())
    return figures


def rank(folder: Path) -> None:
    """What one of the ranks does."""
    init_ranks()
    figures = held_bytes() if distributed.world_size() == 1 else margin(folder)
    if distributed.rank() == 0:
        (folder / "figures.json").write_text(json.dumps(figures))
    distributed.barrier()


def held_bytes() -> dict[str, float]:
    """Bytes of all tensors after a step, by parameter of the model."""
    before = tensor_bytes()
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
    still = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    size = sum(parameter.numel() for parameter in model.parameters())
    held = tensor_bytes() - before - still + gradients
    return {"bytes_per_parameter_zero0_one_rank": held / size}


def tensor_bytes() -> int:
    """Of all tensors of this process."""
    gc.collect()
    tensors = (thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor))
    storages = {each.data_ptr(): each.nbytes() for each in (t.untyped_storage() for t in tensors)}
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
    report(
        gather([ranks, walks]),
        at_least={"proxy_paths": 20},
        at_most={
            "proxy_violations": 0,
            "nondeterministic_ops": 0,
            "syncs_per_micro_batch_dpo": 4,
            "blocking_copies_per_micro_batch": 1,
            "bytes_per_parameter_zero0_one_rank": 16.5,
            "bf16_margin_at_step_0": 1e-6,
        },
    )


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank(Path(sys.argv[1]).parent)
    else:
        main()
