"""Files in which gradients of functionals wait for their turn in each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from dynolab.training.resume import link_or_copy


@dataclass(frozen=True)
class GradientFiles:
    """A folder with a file for each row of each kind: `sensitivity-0003.safetensors`.

    Any rows can be read together, however they were written. A file is replaced, never changed, so
    that a link to it keeps what it had.
    """

    folder: Path

    def write(
        self, kind: str, numbers: Sequence[int], rows: Float[Tensor, "rows parameters"]
    ) -> None:
        """Writes rows, in place of older ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, row in zip(numbers, rows, strict=True):
            unfinished = self.folder / "unfinished"
            save_file({kind: row.cpu()}, unfinished)
            unfinished.replace(self._file(kind, number))

    def read(
        self, kind: str, numbers: Sequence[int], device: torch.device
    ) -> Float[Tensor, "rows parameters"] | None:
        """Reads rows; None where there are none of this kind."""
        if not self._file(kind, numbers[0]).exists():  # rows of a kind are written together
            return None
        rows: Float[Tensor, "rows parameters"] | None = None
        for place, number in enumerate(numbers):
            row = load_file(self._file(kind, number))[kind]
            if rows is None:
                rows = torch.empty(len(numbers), len(row), dtype=row.dtype, device=device)
            rows[place] = row
        return rows

    def link(self, kind: str, folder: Path) -> None:
        """Puts the files of a kind into another folder."""
        for file in self.folder.glob(f"{kind}-*.safetensors"):
            link_or_copy(file, folder / file.name)

    def _file(self, kind: str, number: int) -> Path:
        return self.folder / f"{kind}-{number:04d}.safetensors"
