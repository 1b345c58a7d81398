"""The few collective operations that training and analysis need; trivial for one process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, zip_longest
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.constants import default_pg_timeout

from dynolab.errors import DynolabError

Item = TypeVar("Item")
_NO_ITEM = cast(Any, object())

MEETING = "DYNOLAB_MEETING"
"""Environment variable: the file through which the ranks of one host find each other.

Without it they meet at torchrun's address, a port that is open to the network.
"""


def join() -> None:
    """Joins the process group of the ranks that torchrun started.

    Tensors on GPUs travel over NCCL, those on the CPU, and with them all objects, over gloo.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpus = gpus_usable()
    if on_gpus:
        torch.cuda.set_device(device())  # before any collective: a group is bound to the GPU in use
    options: dict[str, Any] = {
        "backend": "cpu:gloo,cuda:nccl" if on_gpus else "gloo",
        "timeout": default_pg_timeout,  # NCCL's default is too short for rank 0's solo work
        # As DeepSpeed does it: without it NCCL guesses each rank's GPU.
        "device_id": device() if on_gpus and ranks > 1 else None,
    }
    if file := os.environ.get(MEETING):
        options |= {"store": dist.FileStore(file, ranks), "rank": rank, "world_size": ranks}
    dist.init_process_group(**options)


def leave() -> None:
    """Waits until every rank has finished, then ends this process: the last call of a rank.

    Nothing for a single process. The rest of Python's exit is left out, in which threads that the
    group's holders keep (DDP, DeepSpeed) can abort a process whose work is done.
    """
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def rank() -> int:
    """This process's number among the ranks; 0 for a single process."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """The number of ranks; 1 for a single process."""
    return dist.get_world_size() if dist.is_initialized() else 1


def barrier() -> None:
    """Waits until every rank has called it."""
    if dist.is_initialized():
        dist.barrier()


def gather(mine: Item) -> list[Item]:
    """Every rank's item, in rank order, on every rank."""
    if not dist.is_initialized():
        return [mine]
    items: list[Any] = [None] * world_size()
    dist.all_gather_object(items, mine)
    return items


def add_up(mine: Tensor) -> Tensor:
    """The sum of a tensor over the ranks, on every rank; `mine` itself becomes it."""
    if dist.is_initialized():
        contiguous = mine.contiguous()  # gloo adds up the memory that a strided view begins at
        dist.all_reduce(contiguous)
        mine.copy_(contiguous)
    return mine


def deal(items: Sequence[Item]) -> Sequence[Item]:
    """This rank's items, dealt round-robin: counts differ by at most one."""
    return items[rank() :: world_size()]


def gather_dealt(mine: Sequence[Item]) -> list[Item]:
    """Every rank's results for its `deal` items, in the items' order, on every rank."""
    rounds = zip_longest(*gather(list(mine)), fillvalue=_NO_ITEM)
    return [item for dealt in rounds for item in dealt if item is not _NO_ITEM]


def gpus_usable() -> bool:
    """Whether torch has a GPU and may compute on it."""
    return os.environ.get("DS_ACCELERATOR") != "cpu" and torch.cuda.is_available()


def device() -> torch.device:
    """The accelerator of this rank, or the CPU."""
    number = _choose_gpu()
    return (
        torch.device("cpu") if number is None or not gpus_usable() else torch.device("cuda", number)
    )


def _local_rank() -> int | None:
    return int(os.environ.get("LOCAL_RANK", "0"))


_choose_gpu = _local_rank


@contextmanager
def gpu_chosen_by(choose: Callable[[], int | None]) -> Iterator[None]:
    """While the block runs, `device` asks for its GPU's number; None is the CPU."""
    global _choose_gpu
    before, _choose_gpu = _choose_gpu, choose
    try:
        yield
    finally:
        _choose_gpu = before


def share_of(sizes: Sequence[int]) -> slice:
    """This rank's items: contiguous, in rank order, totals as even as whole items allow.

    With the total cut into even parts, an item belongs to the rank whose part holds its middle; a
    rank may have none.
    """
    middles = [end - size / 2 for end, size in zip(accumulate(sizes), sizes, strict=True)]
    first, last = (
        sum(middle * world_size() < sum(sizes) * edge for middle in middles)
        for edge in (rank(), rank() + 1)
    )
    return slice(first, last)


def rank_zero_first(make: Callable[[], Item], then: Callable[[], Item] | None = None) -> Item:
    """Rank 0 calls `make`, then the others `then` (default: `make`); rank 0's error stops all."""
    item: Item | DynolabError | None = None
    if rank() == 0:
        try:
            item = make()
        except DynolabError as error:
            item = error
    stopped = gather(item if isinstance(item, DynolabError) else None)[0]
    if stopped is not None:
        raise stopped
    mine = cast(Item, item) if rank() == 0 else (then or make)()
    barrier()
    return mine
