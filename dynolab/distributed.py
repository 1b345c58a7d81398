"""The few collective operations that training and analysis need; trivial for one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from dynolab.errors import DynolabError

Item = TypeVar("Item")


def rank() -> int:
    """This process's number among the ranks; 0 where there is one process."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many ranks take part."""
    return dist.get_world_size() if dist.is_initialized() else 1


def barrier() -> None:
    """Returns once every rank has come here."""
    if dist.is_initialized():
        dist.barrier()


def gather(mine: Item) -> list[Item]:
    """Every rank's item, in rank order, on every rank."""
    if not dist.is_initialized():
        return [mine]
    gathered: list[Item | None] = [None] * world_size()
    dist.all_gather_object(gathered, mine)
    return cast(list[Item], gathered)


def device() -> torch.device:
    """The accelerator of this rank, or the CPU."""
    if torch.cuda.is_available():
        import os

        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def share_of(sizes: Sequence[int]) -> slice:
    """This rank's items: contiguous runs in rank order, as even in their sizes as whole items are.

    An item belongs to the rank in whose even part of the total its middle lies; a rank may have
    none.
    """
    middles = [end - size / 2 for end, size in zip(accumulate(sizes), sizes, strict=True)]
    first, last = (
        sum(middle * world_size() < sum(sizes) * edge for middle in middles)
        for edge in (rank(), rank() + 1)
    )
    return slice(first, last)


def rank_zero_first(
    make: Callable[[], Item], then: Callable[[], Item] | None = None
) -> Item:  # fmt: skip
    """Rank 0 makes, then the others do `then` or make too; what stops rank 0 stops all."""
    made: Item | DynolabError | None = None
    if rank() == 0:
        try:
            made = make()
        except DynolabError as error:
            made = error
    stopped = gather(made if isinstance(made, DynolabError) else None)[0]
    if stopped is not None:
        raise stopped
    mine = cast(Item, made) if rank() == 0 else (then or make)()
    barrier()
    return mine
