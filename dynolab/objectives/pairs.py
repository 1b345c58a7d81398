"""Base class of the losses on pairs of a chosen and a rejected answer, and their designed doses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Self, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch
from dynolab.errors import ConfigError
from dynolab.objectives.base import Objective

Per = Literal["batch", "pair", "token"]


class DesignedDoseConfig(BaseModel):
    """Settings of the dose that forces choose."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    per: Per = Field(
        "batch", description="What has its own dose: the step's batch, each pair, or each token."
    )
    sample: int = Field(
        8, ge=1, description="Chosen answers outside the batch, drawn anew each step, to protect."
    )


def largest_doses(
    gain: float, harms: Float[Tensor, " groups"], pushes: Float[Tensor, " groups"]
) -> Float[Tensor, " groups"]:
    """`argmax Σ_g d_g push_g` over `0 ≤ d ≤ 1` with `gain − Σ_g d_g harm_g ≥ 0`.

    A fractional knapsack, which is solved exactly by taking groups in the order of harm per push
    (Dantzig, *Operations Research* 5, 1957); a group that harms nothing has dose 1. With one group
    of positive harm d = gain/harm, within [0, 1]. Where even d = 0 leaves the sum negative, groups
    that harm have dose 0.

    **Arguments:** `gain`: what chosen answers do to the sample, to first order; `harms`: what each
    group takes from that at dose 1; `pushes`: at least 0.
    """
    harmful = harms > 0
    room = gain - float(harms[~harmful].sum())
    doses = torch.ones_like(harms)
    order = (harms / pushes).masked_fill(~harmful, -torch.inf).argsort(stable=True)
    order = order[int((~harmful).sum()) :]
    ordered = harms[order]
    before = ordered.cumsum(0) - ordered
    doses[order] = ((room - before) / ordered).clamp(0, 1)
    return doses


def band_dose(chosen: float, product: float, rejected: float) -> float:
    """The dose nearest to 1 at which a step on a pair keeps its chosen answer and lowers the other.

    With a₊ = c₊ g₊ and a₋ = c₋ g₋, what the loss does through both answers, a step along
    `a₊ − d a₋` does so for d between ⟨a₊, a₋⟩/‖a₋‖² and ‖a₊‖²/⟨a₊, a₋⟩ (Chen et al., arXiv
    2604.18239), and for every d where the two do not point the same way.

    **Arguments:** ‖a₊‖², ⟨a₊, a₋⟩ and ‖a₋‖².
    """
    if product <= 0:
        return 1.0
    return min(max(1.0, product / rejected), chosen / product)


@dataclass(frozen=True)
class TokenEffects:
    """What each token of some pairs does to the sample at dose 1, `c_l s_l`, and its push `|c_l|`.

    `pair` is the token's pair, counted from 0.
    """

    effect: Float[Tensor, " tokens"]
    push: Float[Tensor, " tokens"]
    rejected: Bool[Tensor, " tokens"]
    pair: Int[Tensor, " tokens"]


def designed_doses(parts: Sequence[TokenEffects], per: Per) -> list[Float[Tensor, " _"]]:
    """The dose of every token of a step: of rejected ones `largest_doses`, of chosen ones 1.

    **Arguments:** `parts`: the step's tokens; every part counts its own pairs.
    """
    effect = torch.cat([part.effect for part in parts]).double()
    push = torch.cat([part.push for part in parts]).double()
    rejected = torch.cat([part.rejected for part in parts])
    group = torch.zeros(int(rejected.sum()), dtype=torch.long)
    if per == "token":
        group = torch.arange(len(group))
    if per == "pair":
        whose = torch.repeat_interleave(torch.tensor([len(part.effect) for part in parts]))
        pair = torch.stack([whose, torch.cat([part.pair for part in parts])])[:, rejected]
        group = pair.unique(dim=1, return_inverse=True)[1]
    zeros = torch.zeros(int(group.max()) + 1 if len(group) else 0, dtype=torch.float64)
    doses = largest_doses(
        float(effect[~rejected].sum()),
        zeros.index_add(0, group, -effect[rejected]),
        zeros.index_add(0, group, push[rejected]),
    )
    every = torch.ones_like(effect)
    every[rejected] = doses[group]
    return list(every.split([len(part.effect) for part in parts]))


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
    calibrated: bool = Field(
        default=False,
        exclude_if=lambda calibrated: not calibrated,
        description="In a training, each pair's push on its rejected tokens is scaled so that the "
        "pair, to first order, lowers its rejected answer and not its chosen one.",
    )
    logits_sam: float | None = Field(
        default=None,
        gt=0,
        exclude_if=lambda rho: rho is None,
        description="In a training, each step's gradient is taken with the output layer moved so "
        "far, by its norm, where the step's loss is higher (SAM on the output layer).",
    )

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if self.calibrated and self.designed_dose is not None:
            remedy = "designed_dose chooses the same push; leave one of the two out"
            raise ConfigError("objective.calibrated", True, remedy)
        if self.logits_sam is not None and self.chooses_dose:
            remedy = "chooses no doses, which are of the loss at the weights; leave one of them out"
            raise ConfigError("objective.logits_sam", self.logits_sam, remedy)
        return self

    @property
    def chooses_dose(self) -> bool:
        """Whether steps choose how hard they push rejected answers."""
        return self.calibrated or self.designed_dose is not None


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

    def loss(self, logps: Float[Tensor, " tokens"], batch: TokenBatch) -> Float[Tensor, ""]:
        """The batch's share of the step's mean φ."""
        return self._whole_loss(self.dosed(logps, batch), batch)

    def token_weights(
        self, logps: Float[Tensor, " tokens"], batch: TokenBatch
    ) -> Float[Tensor, " tokens"]:
        """Those of whole pushes, times the doses."""
        weights: Float[Tensor, " tokens"] = -torch.func.grad(self._whole_loss)(logps, batch)
        doses = self.doses(logps, batch)
        return weights if doses is None else weights * doses

    def _whole_loss(self, logps: Float[Tensor, " tokens"], batch: TokenBatch) -> Float[Tensor, ""]:
        values = self.pair_loss(*self.answers(logps, batch))
        chosen_weights = (batch.token_side == CHOSEN).to(logps)
        if batch.weight is not None:
            weight = batch.weight.to(logps)
            values, chosen_weights = (
                batch.by_side(weight)[0] * values,
                weight[batch.sequence] * chosen_weights,
            )
        value = values.sum() / batch.totals.examples
        if self.likelihood_weight:
            value -= (
                self.likelihood_weight * (chosen_weights * logps).sum() / batch.totals.chosen_tokens
            )
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
        dosed: dict[str, Float[Tensor, ""]] = {}
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
