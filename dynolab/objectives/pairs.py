"""Base class of the losses on pairs of a chosen and a rejected answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch
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


Config = TypeVar("Config", bound=PairConfig)


class PairObjective(ABC, Generic[Config]):
    """`L = mean over pairs of φ(s_c, s_r)`, s one number per response, its score.

    A response's score is the sum over its tokens of `log π`, less `log π_ref` where the loss has
    a reference, divided by the number of tokens n where the loss averages. Losses differ only in φ.
    The force weights are `c_l = −∂φ/∂s_c` on chosen and `−∂φ/∂s_r` on rejected tokens, divided by
    the step's pairs (and by n where averaged). Where the batch has doses, those of rejected tokens
    are multiplied by them.
    """

    sides: ClassVar[tuple[int, ...]] = (CHOSEN, REJECTED)
    dense: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    def averages(self) -> bool:
        """Whether a response's score is a mean over its tokens instead of a sum."""
        return False

    @property
    @abstractmethod
    def reward_scale(self) -> float:
        """Factor from a score to the implicit reward that is logged."""

    @abstractmethod
    def pair_loss(self, chosen: Pairs, rejected: Pairs) -> Pairs:
        """φ of every pair's two scores."""

    @abstractmethod
    def pair_rates(self, chosen: Pairs, rejected: Pairs) -> tuple[Pairs, Pairs]:
        """How hard chosen is pushed up, `−∂φ/∂s_c`, and rejected down, `+∂φ/∂s_r`."""

    def _scores(self, logps: Float[Tensor, " tokens"], batch: TokenBatch) -> tuple[Pairs, Pairs]:
        """Scores of the chosen and of the rejected response of each pair."""
        if self.needs_reference:
            assert batch.reference is not None, "the reference is scored before the first step"
            logps = logps - batch.reference
        score = batch.sequence_sum(logps)
        if self.averages:
            score = score / batch.sequence_length
        chosen, rejected = batch.by_side(score)
        return chosen, rejected

    def _arguments(self, logps: Float[Tensor, " tokens"], batch: TokenBatch) -> tuple[Pairs, Pairs]:
        """The arguments of φ: the scores, unless a loss sets each side a target."""
        return self._scores(logps, batch)

    def loss(self, logps: Float[Tensor, " tokens"], batch: TokenBatch) -> Float[Tensor, ""]:
        """The batch's share of the step's mean φ."""
        if batch.dose is not None:
            logps = torch.lerp(logps.detach(), logps, batch.dose.to(logps))
        return self.pair_loss(*self._arguments(logps, batch)).sum() / batch.totals.examples

    def token_weights(
        self, logps: Float[Tensor, " tokens"], batch: TokenBatch
    ) -> Float[Tensor, " tokens"]:
        """c_l = −∂φ/∂s of the token's response, divided by pairs (and its tokens if averaged)."""
        up, down = self.pair_rates(*self._arguments(logps, batch))
        sides = torch.cat([up, -down])
        rate = torch.empty_like(sides).scatter(0, batch.side_order, sides)
        if self.averages:
            rate = rate / batch.sequence_length
        weights = rate[batch.sequence] / batch.totals.examples
        return weights if batch.dose is None else weights * batch.dose.to(weights)

    @torch.no_grad()
    def metrics(
        self, logps: Float[Tensor, " tokens"], batch: TokenBatch
    ) -> dict[str, Float[Tensor, ""]]:
        """Rewards, margin, accuracy, both sides' log-probabilities and both sides' weights."""
        chosen, rejected = (self.reward_scale * score for score in self._scores(logps, batch))
        up, down = self.pair_rates(*self._arguments(logps, batch))
        chosen_logp, rejected_logp = batch.by_side(batch.sequence_sum(logps))
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
            "train/chosen_logp": chosen_logp.sum(),
            "train/rejected_logp": rejected_logp.sum(),
            "train/dynamic_learning_rate": up.sum(),
            "train/dynamic_learning_rate_rejected": down.sum(),
        }
