"""Weights and optimizer state on disk, in shards that any number of ranks can read.

Every rank writes the stretches of parameters that it updates, each under its parameter's name and
place, in safetensors: DeepSpeed's own checkpoints are pickles, which could run code written by
anyone with access to the store. A rank reads the stretches that it updates, whoever wrote them,
and no more: no host holds another's share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from dynolab import distributed
from dynolab.errors import ConfigError

MASTER, STEP = "master", "step"

FILE_BYTES = 5_000_000_000
"""Largest file of a saved model; a larger model is saved in several, which every reader joins."""


@dataclass(frozen=True)
class Stretch:
    """`size` entries of a parameter, flattened, from `start` on, that this rank updates.

    They stand in `group`, a tensor that the optimizer updates as one, flattened, from `offset` on.
    """

    name: str
    start: int
    size: int
    group: Tensor
    offset: int = 0

    def of(self, tensor: Tensor) -> Tensor:
        """A view of these entries in a tensor of the group's shape."""
        return tensor.detach().view(-1)[self.offset : self.offset + self.size]


def save_shard(
    stretches: Iterable[Stretch], optimizer: torch.optim.Optimizer, folder: Path
) -> None:
    """Writes this rank's weights and optimizer state into `shard-<rank>.safetensors`.

    Names are `parameter|start|what`: the weights, a tensor of the optimizer's state, or the number
    of its steps.
    """
    tensors: dict[str, Tensor] = {}
    for stretch in stretches:
        place = f"{stretch.name}|{stretch.start}"
        tensors[f"{place}|{MASTER}"] = stretch.of(stretch.group)
        for key, value in optimizer.state.get(stretch.group, {}).items():
            if value is not None:
                tensors[f"{place}|{key}"] = value if key == STEP else stretch.of(value)
    folder.mkdir(parents=True, exist_ok=True)
    copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
    save_file(copies, folder / f"shard-{distributed.rank()}.safetensors")


def load_shards(
    stretches: Iterable[Stretch], optimizer: torch.optim.Optimizer, folder: Path
) -> None:
    """Reads this rank's weights and optimizer state from what any number of ranks wrote.

    **Raises:** `ConfigError` if a part is missing.
    """
    states: dict[Tensor, dict[str, Tensor]] = defaultdict(dict)
    with ExitStack() as opened:
        places = _places(folder, opened)
        for stretch in stretches:
            group, state, stored = stretch.group, states[stretch.group], places[stretch.name]
            stretch.of(group).copy_(_read(stored, stretch, MASTER, folder))
            for key in stored.keys() - {MASTER, STEP}:
                tensor = state.setdefault(key, torch.zeros_like(group, requires_grad=False))
                stretch.of(tensor).copy_(_read(stored, stretch, key, folder))
            for start, file in stored.get(STEP, [])[:1]:
                steps = file.get_tensor(f"{stretch.name}|{start}|{STEP}")
                # A fused optimizer counts steps on the device, any other on the CPU.
                state[STEP] = steps.to(group.device) if optimizer.defaults.get("fused") else steps
    optimizer.state.update({group: state for group, state in states.items() if state})


Stored = dict[str, list[tuple[int, Any]]]
"""Of a parameter, by what it is: where the stretches that ranks wrote start, and their files."""


def _places(folder: Path, opened: ExitStack) -> dict[str, Stored]:
    """What a folder's shards hold, by parameter; their files are open as long as `opened` is."""
    places: dict[str, Stored] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.glob("shard-*.safetensors")):
        file = opened.enter_context(safe_open(path, framework="pt"))
        for tensor in file.keys():  # noqa: SIM118
            name, _, rest = tensor.partition("|")
            start, _, key = rest.partition("|")
            if start.isdecimal() and key:
                places[name][key].append((int(start), file))
    return places


def _read(stored: Stored, stretch: Stretch, key: str, folder: Path) -> Tensor:
    """A stretch, piece by piece from the stretches that ranks wrote."""
    values, missing = torch.empty(stretch.size), stretch.size
    for start, file in stored.get(key, []):
        piece = file.get_slice(f"{stretch.name}|{start}|{key}")
        first = max(start, stretch.start)
        end = min(start + piece.get_shape()[0], stretch.start + stretch.size)
        if first < end:
            values[first - stretch.start : end - stretch.start] = piece[first - start : end - start]
            missing -= end - first
    if missing:
        raise ConfigError(
            "resume_from",
            str(folder),
            f"lacks {missing} entries of {stretch.name} ({key}); start anew, with --fresh",
        )
    return values
