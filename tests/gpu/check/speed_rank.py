"""A rank program: trains, and notes its speed, what it held and the rate of products."""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import torch

from dynolab import distributed
from dynolab.distributed import device
from dynolab.training.config import TrainConfig
from dynolab.training.deepspeed_engine import DeepSpeedEngine, init_ranks
from tests.training.small import metrics, run_small

WARM_UP = 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    folder, config = Path(job["folder"]), TrainConfig.model_validate(job["config"])
    init_ranks()
    figures = train(folder, job, config)
    if distributed.rank() == 0:
        (folder / "figures.json").write_text(json.dumps(figures))
    distributed.barrier()


def train(folder: Path, job: Mapping[str, float], config: TrainConfig) -> dict[str, float]:
    gc.freeze()  # on the CPU, tensors are looked for among what Python has made since
    way, before = job["way"], tensor_bytes()
    held: list[int] = []
    step = DeepSpeedEngine.step

    def noted(engine: DeepSpeedEngine, rate: float) -> float:
        norm = step(engine, rate)
        held.append(tensor_bytes() - before)
        return norm

    with patch.object(DeepSpeedEngine, "step", noted):
        trained = run_small(folder, folder / str(way), config)
    speeds = [line["train/examples_per_s"] for line in metrics(trained)][WARM_UP:]
    tokens = statistics.median(speeds) * job["tokens"]
    peak = torch.cuda.max_memory_allocated() if device().type == "cuda" else max(held)
    rate = products_per_s(DTYPES[config.engine.dtype]) * distributed.world_size()
    return {
        f"{way}_tokens_per_s": tokens,
        f"{way}_mfu": 6 * job["parameters"] * tokens / rate,
        f"{way}_peak_gb": max(distributed.gather(peak)) / 1e9,
        # The gradients of a step are freed after it.
        f"{way}_bytes_per_parameter": held[-1] / job["parameters"],
    }


def tensor_bytes() -> int:
    """Of all tensors of this process on its device."""
    if device().type == "cuda":
        return torch.cuda.memory_allocated()
    gc.collect()
    storages = {
        thing.untyped_storage().data_ptr(): thing.untyped_storage().nbytes()
        for thing in gc.get_objects()
        if isinstance(thing, torch.Tensor)
    }
    return sum(storages.values())


def products_per_s(dtype: torch.dtype) -> float:
    """Operations a second of large matrix products."""
    size, rounds = (8192, 20) if device().type == "cuda" else (512, 5)
    left, right = (torch.randn(size, size, device=device()).to(dtype) for _ in range(2))
    for _ in range(2):
        float((left @ right)[0, 0])
    began = time.perf_counter()
    for _ in range(rounds):
        made = left @ right
    float(made[0, 0])
    return rounds * 2 * size**3 / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
