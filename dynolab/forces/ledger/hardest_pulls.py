"""The hardest pulls on a functional, which are split into tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.grouping import grouped

HARDEST = 3
"""Pulls on a functional that are kept."""


class HardestPulls:
    """The hardest pulls on one functional of all steps so far, an example's in a step being one.

    A step's pull is split where it is among these when the step is entered. At the end the hardest
    of all steps have been split, and of n pulls in no particular order about
    `HARDEST (1 + ln(n / HARDEST))` in all.

    **Arguments:** `nats`: what was kept so far, the hardest first; zeros where there is none yet.
    """

    def __init__(self, nats: Float[Tensor, " pulls"] | None = None) -> None:
        self.nats = torch.zeros(HARDEST, dtype=torch.float64) if nats is None else nats.cpu()

    def enter(self, lines: Float[Tensor, " responses"], examples: Sequence[str]) -> list[int]:
        """The numbers of a step's responses to split: of every example whose lines' sum is among
        the hardest pulls, the one that pulls hardest.

        Pulls are downwards: the hardest is the most negative one.
        """
        numbers = grouped((example, number) for number, example in enumerate(examples))
        nats = lines.cpu().double()
        sums = torch.stack([nats[rows].sum() for rows in numbers.values()])
        self.nats = torch.cat([self.nats, sums]).sort().values[:HARDEST]
        return [
            min(rows, key=lambda number: float(nats[number]))
            for rows, pull in zip(numbers.values(), sums.tolist(), strict=True)
            if pull < 0 and pull <= self.nats[-1]
        ]
