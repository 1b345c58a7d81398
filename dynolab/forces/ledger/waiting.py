"""Keeps gradients of functionals on disk while memory holds those of others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor


@dataclass(frozen=True)
class Waiting:
    """A folder with a file for each row of each kind: `sensitivity-0003.safetensors`.

    Any rows can be read together, however they were written. A file is replaced, never changed, so
    that a link to it keeps what it had.
    """

    folder: Path

    def keep(self, kind: str, rows: Sequence[int], of: Float[Tensor, "rows parameters"]) -> None:
        """Writes rows, in place of older ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, row in zip(rows, of, strict=True):
            unfinished = self.folder / "unfinished"
            save_file({kind: row.cpu()}, unfinished)
            unfinished.replace(self._file(kind, number))

    def take(
        self, kind: str, rows: Sequence[int], device: torch.device
    ) -> Float[Tensor, "rows parameters"] | None:
        """Reads rows; None where there are none of this kind."""
        if not self._file(kind, rows[0]).exists():
            return None
        taken: Tensor | None = None
        for place, number in enumerate(rows):
            row = load_file(self._file(kind, number))[kind]
            if taken is None:
                taken = torch.empty(len(rows), len(row), dtype=row.dtype, device=device)
            taken[place] = row
        return taken

    def link(self, kind: str, folder: Path) -> None:
        """Puts the files of a kind into another folder of the same disk."""
        for file in self.folder.glob(f"{kind}-*.safetensors"):
            try:
                os.link(file, folder / file.name)
            except OSError:  # another disk, or one without links
                shutil.copyfile(file, folder / file.name)

    def _file(self, kind: str, row: int) -> Path:
        return self.folder / f"{kind}-{row:04d}.safetensors"
