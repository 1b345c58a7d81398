"""A rank program that joins its process group and ends: the least that any launch costs."""

from __future__ import annotations

from dynolab import distributed
from dynolab.training.deepspeed_engine import init_ranks

if __name__ == "__main__":
    init_ranks()
    distributed.barrier()
