"""A rank program: sums tensors over the ranks and gathers objects."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from dynolab import distributed
from dynolab.distributed import device

NUMBERS = 2**20
TIMED, ROUNDS = 2**26, 10


def main() -> None:
    folder = Path(json.loads(Path(sys.argv[1]).read_text())["folder"])
    distributed.join()
    figures = {
        "sum_error": sum_error(torch.float32),
        "bf16_sum_error": sum_error(torch.bfloat16),
        "objects_lost": float(
            sum(got != {"rank": rank} for rank, got in enumerate(distributed.gather(mine())))
        ),
    }
    if device().type == "cuda":
        backend = dist.group.WORLD._get_backend(device())  # type: ignore[union-attr]
        figures |= {"nccl": float("nccl" in backend.name().lower()), "gb_per_s": bandwidth()}
    if distributed.rank() == 0:
        (folder / "figures.json").write_text(json.dumps(figures))
    distributed.leave()


def mine() -> dict[str, int]:
    return {"rank": distributed.rank()}


def sum_error(dtype: torch.dtype) -> float:
    """Of small whole numbers, which every dtype adds without rounding."""
    numbers = torch.full((NUMBERS,), distributed.rank() + 1, dtype=dtype, device=device())
    dist.all_reduce(numbers)
    count = distributed.world_size()
    return float((numbers.double() - count * (count + 1) / 2).abs().max())


def bandwidth() -> float:
    """Of a ring, in which each byte passes 2(n − 1)/n links."""
    numbers = torch.zeros(TIMED, device=device())
    dist.all_reduce(numbers)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(ROUNDS):
        dist.all_reduce(numbers)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / ROUNDS
    count = distributed.world_size()
    return 2 * (count - 1) / count * numbers.nbytes / seconds / 1e9


if __name__ == "__main__":
    main()
