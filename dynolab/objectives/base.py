"""The base of objectives, and the force that follows from any of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch
from dynolab.likelihood.token_logps import target_logps, token_logps


class Objective(ABC):
    """A loss on log-probabilities of response tokens.

    `loss` divides by the batch's global totals, so that micro-batches and ranks add up. A `dense`
    objective reads and weighs several tokens per position (`target_logps`, shape
    "tokens targets"); any other reads the response tokens only (`token_logps`, shape "tokens").
    """

    sides: ClassVar[tuple[int, ...]] = (CHOSEN, REJECTED)
    """Which sides of an example it trains on."""
    dense: ClassVar[bool] = False
    """Whether it also reads each position's likeliest tokens, `batch.top`."""

    @property
    @abstractmethod
    def needs_reference(self) -> bool:
        """Whether `batch.reference` must hold the reference policy's log-probabilities."""

    @abstractmethod
    def loss(self, logps: Float[Tensor, "tokens ..."], batch: TokenBatch) -> Float[Tensor, ""]:
        """The batch's share of the step's loss."""

    def token_weights(
        self, logps: Float[Tensor, "tokens ..."], batch: TokenBatch
    ) -> Float[Tensor, "tokens ..."]:
        """Dynamic learning rate c_l = −∂loss/∂log π_l of every token.

        The loss is differentiated by the log-probabilities alone, without the model. The result
        can be differentiated again, in forward and in reverse mode; a loss that holds a factor
        constant has to do that outside of what is differentiated here.
        """
        weights: Float[Tensor, "tokens ..."] = -torch.func.grad(self.loss)(logps, batch)
        return weights

    def doses(
        self, logps: Float[Tensor, " tokens"], batch: TokenBatch
    ) -> Float[Tensor, " tokens"] | None:
        """Factor on the push of every token; None if all are 1."""
        return None if batch.dose is None else batch.dose.to(logps)

    def dosed(self, logps: Float[Tensor, " tokens"], batch: TokenBatch) -> Float[Tensor, " tokens"]:
        """The same values, whose gradient is multiplied by the doses, for objectives with them."""
        doses = self.doses(logps, batch)
        return logps if doses is None else torch.lerp(logps.detach(), logps, doses)

    @abstractmethod
    def metrics(
        self, logps: Float[Tensor, " tokens"], batch: TokenBatch
    ) -> dict[str, Float[Tensor, ""]]:
        """Named sums over the batch's examples; the trainer divides by the step's examples."""


def read_logps(
    objective: Objective, logits: Float[Tensor, "tokens vocabulary"], batch: TokenBatch
) -> Float[Tensor, "tokens ..."]:
    """The log-probabilities that an objective reads, in nats."""
    return target_logps(logits, batch) if objective.dense else token_logps(logits, batch)


def force(
    token_weights: Float[Tensor, "tokens ..."],
    logits: Float[Tensor, "tokens vocabulary"],
    batch: TokenBatch,
) -> Float[Tensor, "tokens vocabulary"]:
    """Force on the logits, `G_l = ∂loss/∂z_l = Σ_j c_{l,j} (π_l − e_{t_{l,j}}) / T`.

    The sum has one term, the response token's, unless the objective is dense; T is the batch's
    temperature, at which π is taken. Holds for every loss that depends on the logits through these
    tokens' log-probabilities alone (Ren & Sutherland, arXiv 2407.10490, eq. 3 and its DPO
    counterpart). Its entries sum to zero: adding a constant to all logits changes nothing.
    """
    return target_force(token_weights, logits, batch.targets, batch.temperature)


def target_force(
    token_weights: Float[Tensor, "tokens ..."],
    logits: Float[Tensor, "tokens vocabulary"],
    targets: Int[Tensor, "tokens targets"],
    temperature: float = 1.0,
) -> Float[Tensor, "tokens vocabulary"]:
    """`force` of a loss that reads several tokens per position; spare targets are ignored."""
    policy = torch.softmax(logits if temperature == 1 else logits / temperature, dim=-1)
    total = torch.zeros_like(policy)
    columns = token_weights.reshape(len(logits), -1) / temperature
    for rate, target in zip(columns.T, targets.T, strict=False):
        total += rate[:, None] * _pull(policy, target[:, None])
    return total


def _pull(
    policy: Float[Tensor, "tokens vocabulary"], target: Int[Tensor, "tokens 1"]
) -> Float[Tensor, "tokens vocabulary"]:
    """π − e_y."""
    # 1 − π_y is the sum of the others, as the subtraction loses its digits if π_y is close to 1.
    others = policy.scatter(-1, target, 0.0)
    return others.scatter(-1, target, -others.sum(-1, keepdim=True))
