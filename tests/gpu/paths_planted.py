"""A mistake planted on purpose, and small acts, of which the log must name what a GPU would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from dynolab.data.prefixes import collate_prefixes
from dynolab.objectives.dpo import DPO
from dynolab.objectives.pairs import Pairs
from tests.data.test_to_device import SEQUENCES, batch
from tests.training.small import make_files, make_job, run, settings


def host_tensor_in_a_loss(folder: Path) -> None:
    make_files(folder)
    own = DPO.pair_loss

    def mistaken(self: DPO, chosen: Pairs, rejected: Pairs) -> Pairs:
        return own(self, chosen, rejected) + torch.zeros(len(chosen))

    with patch.object(DPO, "pair_loss", mistaken):
        run(make_job(folder, folder / "trained", settings(steps=1, record_steps=[])))


def on_gpu() -> Tensor:
    return torch.arange(6.0, device="cuda")


def batch_there_and_back() -> None:
    """Every tensor arrives as it was."""
    own, _ = collate_prefixes(SEQUENCES, [[0, 1], [2]], 0)
    for before, after in ((batch(), batch().to("cuda")), (own, own.to("cuda"))):
        pairs = zip(tensors_of(before), tensors_of(after), strict=True)
        assert all(torch.equal(one, there.values) for one, there in pairs)


def tensors_of(value: object) -> list[Tensor]:
    """The tensors of a data class and of those within it."""
    if isinstance(value, Tensor):
        return [value]
    parts = value if isinstance(value, tuple) else vars(value).values()
    return [
        tensor
        for part in parts
        if isinstance(part, tuple | Tensor) or is_dataclass(part)
        for tensor in tensors_of(part)
    ]


SMALL: dict[str, Callable[[], object]] = {
    "host values, GPU indices": lambda: torch.arange(6.0)[on_gpu().long()],
    "GPU values, host indices": lambda: on_gpu()[torch.tensor([0, 1])],
    "a host scalar": lambda: on_gpu() + torch.tensor(1.0),
    "joined with a host tensor": lambda: torch.cat([on_gpu(), torch.ones(1)]),
    "read": lambda: float(on_gpu().sum()),
    "mask": lambda: on_gpu()[on_gpu() > 2],
    "copied from pageable memory": lambda: torch.ones(2).to("cuda", non_blocking=True),
    "copied from pinned memory": lambda: torch.ones(2).pin_memory().to("cuda", non_blocking=True),
    "a batch": batch_there_and_back,
    "copied to the host": lambda: on_gpu().cpu(),
    "added in any order": lambda: on_gpu().index_add(0, on_gpu().long(), on_gpu()),
    "numbers added in any order": lambda: (
        on_gpu().long().index_add(0, on_gpu().long(), on_gpu().long())
    ),
}


def paths() -> Iterator[tuple[str, Callable[[Path], object]]]:
    yield "host tensor in a loss", host_tensor_in_a_loss
    for name, act in SMALL.items():
        yield name, partial(lambda act, _: str(act()), act)
