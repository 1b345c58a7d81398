"""Base class of the losses on pairs of a chosen and a rejected answer."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch
from dynolab.objectives.base import Objective
from dynolab.objectives.designed_dose import DesignedDoseConfig

Pairs = Float[Tensor, "pairs"]


class PairConfig(BaseModel):
    """Base of the settings of a loss on pairs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    # Excluded when unset, so that results from before this field keep their keys.
    designed_dose: DesignedDoseConfig | None = Field(
        default=None,
        exclude_if=lambda designed: designed is None,
        description="In a training, each step's push on rejected tokens is the largest that to "
        "first order lowers no other chosen answers; elsewhere, such as in an audit, it is whole.",
    )


@dataclass(frozen=True)
class Answers:
    """One side's answers of some pairs: their log-probabilities in nats, and lengths in tokens.

    `logp` is log π of the answer and `ratio` h, the log-ratio of policy to reference; without a
    reference, h is log π. `wins` is the probability that the answer is preferred to one of the
    policy's, where known.
    """

    logp: Pairs
    ratio: Pairs
    length: Int[Tensor, " pairs"]
    wins: Pairs | None = None

    @property
    def mean(self) -> Pairs:
        """h per token."""
        return self.ratio / self.length


Config = TypeVar("Config", bound=PairConfig)


class PairObjective(Objective, Generic[Config]):
    """`L = mean over pairs of φ(chosen, rejected)`: losses differ in φ, a function of `Answers`.

    A pair's φ is multiplied by its row's weight, if it has one. Some add `−λ log π` of the chosen
    answers, a mean over all their tokens of the step. Where the batch has doses, the gradient
    through rejected tokens is multiplied by them.
    """

    needs_reference = True

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    def averages(self) -> bool:
        """Whether φ reads means over a response's tokens instead of sums."""
        return False

    @property
    def reward_scale(self) -> float:
        """Factor from a log-ratio (or its mean) to the implicit reward that is logged."""
        return float(getattr(self.config, "beta", 1.0))

    @property
    def likelihood_weight(self) -> float:
        """λ of the chosen answers' likelihood."""
        return 0.0

    @abstractmethod
    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """φ of every pair."""

    def answers(
        self, logps: Float[Tensor, " tokens"], batch: TokenBatch
    ) -> tuple[Answers, Answers]:
        """The batch's chosen and rejected answers, in the order of its pairs."""
        ratio = logps
        if self.needs_reference:
            assert batch.reference is not None, "the reference is scored before the first step"
            ratio = logps - batch.reference
        columns = [batch.sequence_sum(logps), batch.sequence_sum(ratio), batch.sequence_length]
        if batch.wins is not None:
            columns.append(batch.wins.to(logps))
        chosen, rejected = zip(*map(batch.by_side, columns), strict=True)
        return Answers(*chosen), Answers(*rejected)

    def doses(
        self, logps: Float[Tensor, " tokens"], batch: TokenBatch
    ) -> Float[Tensor, " tokens"] | None:
        """Factor on the push of every token, 1 on chosen ones; None if all are 1."""
        return None if batch.dose is None else batch.dose.to(logps)

    def loss(self, logps: Float[Tensor, " tokens"], batch: TokenBatch) -> Float[Tensor, ""]:
        """The batch's share of the step's mean φ."""
        if (doses := self.doses(logps, batch)) is not None:
            logps = torch.lerp(logps.detach(), logps, doses)
        return self._whole_loss(logps, batch)

    def token_weights(
        self, logps: Float[Tensor, " tokens"], batch: TokenBatch
    ) -> Float[Tensor, " tokens"]:
        """Those of whole pushes, times the doses."""
        weights: Tensor = -torch.func.grad(self._whole_loss)(logps, batch)
        doses = self.doses(logps, batch)
        return weights if doses is None else weights * doses

    def _whole_loss(self, logps: Float[Tensor, " tokens"], batch: TokenBatch) -> Float[Tensor, ""]:
        values = self.pair_loss(*self.answers(logps, batch))
        kept = (batch.token_side == CHOSEN).to(logps)
        if batch.weight is not None:
            weight = batch.weight.to(logps)
            values, kept = batch.by_side(weight)[0] * values, weight[batch.sequence] * kept
        value = values.sum() / batch.totals.examples
        if self.likelihood_weight:
            value -= self.likelihood_weight * (kept * logps).sum() / batch.totals.chosen_tokens
        return value

    def response_rates(
        self, logps: Float[Tensor, " tokens"], batch: TokenBatch
    ) -> Float[Tensor, " sequences"]:
        """How hard every chosen response is pushed up and every rejected one down.

        `∓∂φ/∂h`, or by the mean of h over the response's tokens where the loss averages.
        """
        total = batch.sequence_sum(self.token_weights(logps, batch)) * batch.totals.examples
        rates = total if self.averages else total / batch.sequence_length
        return torch.where(batch.side == REJECTED, -rates, rates)

    @torch.no_grad()
    def metrics(
        self, logps: Float[Tensor, " tokens"], batch: TokenBatch
    ) -> dict[str, Float[Tensor, ""]]:
        """Rewards, margin, accuracy, both sides' log-probabilities and both sides' weights."""
        answers = self.answers(logps, batch)
        chosen, rejected = (
            self.reward_scale * (side.mean if self.averages else side.ratio) for side in answers
        )
        up, down = batch.by_side(self.response_rates(logps, batch))
        dosed: dict[str, Tensor] = {}
        if batch.dose is not None:
            dose = batch.sequence_sum(batch.dose.to(logps)) / batch.sequence_length
            dosed = {"train/dose": batch.by_side(dose)[1].sum()}
        return {
            **dosed,
            "train/margin": (chosen - rejected).sum(),
            "train/accuracy": (chosen > rejected).to(logps.dtype).sum(),
            "train/reward_chosen": chosen.sum(),
            "train/reward_rejected": rejected.sum(),
            "train/chosen_logp": answers[0].logp.sum(),
            "train/rejected_logp": answers[1].logp.sum(),
            "train/dynamic_learning_rate": up.sum(),
            "train/dynamic_learning_rate_rejected": down.sum(),
        }
