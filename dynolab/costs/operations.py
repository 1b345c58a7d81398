"""Floating-point operations of forwards and trainings."""

from __future__ import annotations

from dataclasses import dataclass

from dynolab.costs.shape import ModelShape


@dataclass(frozen=True)
class Positions:
    """What forwards run over.

    `padded`: positions of all rows, padding included; `squares`: the sum of their rows' squared
    padded lengths; `responses`: response tokens, where the head is applied.
    """

    padded: int = 0
    squares: int = 0
    responses: int = 0

    def __add__(self, other: Positions) -> Positions:
        return Positions(
            self.padded + other.padded,
            self.squares + other.squares,
            self.responses + other.responses,
        )

    def __mul__(self, times: float) -> Positions:
        return Positions(
            round(self.padded * times), round(self.squares * times), round(self.responses * times)
        )


def decoder_flops(shape: ModelShape, over: Positions) -> int:
    """`2 D Σ T + 4 A Σ T²`: a multiplication and an addition for every number D of the decoder's
    matrices, and for both products of attention of width A, masked or not.

    Checked against torch's own count: `tests/costs/test_operations.py`.
    """
    return 2 * shape.decoder * over.padded + 4 * shape.attention * over.squares


def forward_flops(shape: ModelShape, over: Positions) -> int:
    """The decoder's operations, and `2 H R` of the head at R response tokens."""
    return decoder_flops(shape, over) + 2 * shape.head * over.responses


def gradient_flops(shape: ModelShape, over: Positions, *, checkpoint: bool = False) -> int:
    """A forward and a backward pass, which takes two forwards; one and the adapters' part where
    only adapters are trained.

    With activation checkpointing the decoder runs once more, but for each layer's last product.
    Checked as `decoder_flops` is.
    """
    share = shape.trained / shape.parameters
    backward = 2.0 if share > 0.5 else 1.0 + 2 * share
    again = decoder_flops(shape, over) if checkpoint else 0
    return round((1 + backward) * forward_flops(shape, over)) + again
