"""What an objective is, and the force that follows for all of them."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch


class Objective(Protocol):
    """A loss on per-token log-probabilities with its closed-form force.

    `loss` divides by the batch's global totals, so that micro-batches and ranks add up.
    """

    sides: ClassVar[tuple[int, ...]]
    """Which sides of an example it trains on."""
    needs_reference: ClassVar[bool]
    """Whether `batch.reference` must hold the reference policy's log-probabilities."""

    def loss(self, logps: Float[Tensor, tokens], batch: TokenBatch) -> Float[Tensor, ""]:
        """The batch's share of the step's loss."""

    def learning_rates(
        self, logps: Float[Tensor, tokens], batch: TokenBatch
    ) -> Float[Tensor, tokens]:
        """Dynamic learning rate c_l = −∂loss/∂log π_l of every token, in closed form."""

    def metrics(
        self, logps: Float[Tensor, tokens], batch: TokenBatch
    ) -> dict[str, Float[Tensor, ""]]:
        """Named sums over the batch's examples; the trainer divides by the step's examples."""


def force(
    learning_rates: Float[Tensor, tokens],
    logits: Float[Tensor, "tokens vocabulary"],
    batch: TokenBatch,
) -> Float[Tensor, "tokens vocabulary"]:
    """Force on the logits, `G_l = ∂loss/∂z_l = c_l (π_l − e_{y_l})`.

    Holds for every loss that depends on the logits through the realised tokens' log-probabilities
    alone (Ren & Sutherland, arXiv 2407.10490, eq. 3 and its DPO counterpart). Its entries sum to
    zero: adding a constant to all logits changes nothing.
    """
    target = batch.token[:, None]
    # 1 − π_y as the others' sum: subtracted from one it would round away where π_y is close to it.
    others = torch.softmax(logits, dim=-1).scatter(-1, target, 0.0)
    pull = others.scatter(-1, target, -others.sum(-1, keepdim=True))
    return learning_rates[:, None] * pull
