"""Losses on pairs that are one formula each: SLiC, SimPO, IPO, SPPO, CPO, ORPO, and one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator

from dynolab.errors import ConfigError
from dynolab.functions import Sources, named_function, running, sources_of
from dynolab.objectives.pairs import Answers, PairConfig, PairObjective, Pairs
from dynolab.objectives.registration import register


class SLiCConfig(PairConfig):
    """Settings of sequence likelihood calibration."""

    name: Literal["slic"] = "slic"
    margin: float = Field(
        default=1.0, gt=0, description="Margin δ of the log-probabilities, in nats."
    )
    sft_weight: float = Field(
        default=0.1, ge=0, description="Weight λ of the chosen answer's negative log-likelihood."
    )


@register(SLiCConfig, "SLiC")
class SLiC(PairObjective[SLiCConfig]):
    """`φ = max(0, δ − log π(y_c) + log π(y_r)) − λ log π(y_c)`, without a reference.

    Zhao et al., arXiv 2305.10425, eq. 1; the paper leaves open which answer its second term
    keeps likely: here the chosen one. Force: `c_l = 1[live] + λ` on chosen and `−1[live]` on
    rejected tokens, divided by the pairs; live means that the margin is not reached.
    """

    needs_reference = False

    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """max(0, δ − log π(y_c) + log π(y_r)) − λ log π(y_c)."""
        hinge = torch.relu(self.config.margin - (chosen.logp - rejected.logp))
        return hinge - self.config.sft_weight * chosen.logp


class SimPOConfig(PairConfig):
    """Settings of simple preference optimisation."""

    name: Literal["simpo"] = "simpo"
    beta: float = Field(default=2.0, gt=0, description="Scale β of the average log-probability.")
    margin: float = Field(
        default=0.5, ge=0, description="Target margin γ of the rewards, after scaling with β."
    )


@register(SimPOConfig, "SimPO")
class SimPO(PairObjective[SimPOConfig]):
    """`φ = −log σ(β(a_c − a_r) − γ)`, a the mean log-probability of a response's tokens.

    Meng et al., arXiv 2405.14734, eq. 6. Force: `c_l = ±β(1 − σ)/n`, plus on chosen and minus on
    rejected tokens, divided by the pairs; n is the length of the token's own response, so that a
    short answer's tokens are pushed harder.
    """

    needs_reference = False
    averages = True

    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """−log σ(β(a_c − a_r) − γ)."""
        return -F.logsigmoid(self.config.beta * (chosen.mean - rejected.mean) - self.config.margin)


class IPOConfig(PairConfig):
    """Settings of identity preference optimisation."""

    name: Literal["ipo"] = "ipo"
    beta: float = Field(
        default=0.1,
        gt=0,
        description="Strength of the regularisation, τ in the paper; target 1/(2β).",
    )
    normalise: Literal["sum", "mean"] = Field(
        default="sum",
        description="Log-ratios summed over a response's tokens (the paper's equation), or "
        "averaged over them (TRL's form), which changes the scale of β.",
    )


@register(IPOConfig, "IPO")
class IPO(PairObjective[IPOConfig]):
    """`φ = (d − 1/(2β))²`, `d = h_c − h_r`, h a response's log-ratio, summed or averaged.

    Azar et al., arXiv 2310.12036, eq. 17. Force: `c_l = ±2(1/(2β) − d)`, plus on chosen and minus
    on rejected tokens, divided by the pairs (and by n where averaged). It changes sign once the
    margin is reached: then chosen falls and rejected rises.
    """

    @property
    def averages(self) -> bool:
        """Whether log-ratios are averaged over tokens."""
        return self.config.normalise == "mean"

    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """(d − 1/(2β))²."""
        higher, lower = (side.mean if self.averages else side.ratio for side in (chosen, rejected))
        return (1 / (2 * self.config.beta) - (higher - lower)).square()


class SPPOConfig(PairConfig):
    """Settings of self-play preference optimisation (Wu et al., arXiv 2405.00675).

    The reference is π_t, the policy at the beginning of an iteration. In a training on prompts an
    iteration is a rollout, `updates_per_rollout` steps on pairs of the policy's own answers; a
    training on rows is one iteration, and π_t is its initial policy.
    """

    name: Literal["sppo"] = "sppo"
    beta: float = Field(
        default=0.001, gt=0, description="1/η: a side's log-ratio is driven to (P − 1/2)/β."
    )
    # Excluded at its default, so that results from before this field keep their keys.
    labels: Literal["hard", "soft"] = Field(
        default="hard",
        exclude_if=lambda labels: labels == "hard",
        description="P, the probability that an answer is preferred to one of the policy. hard: "
        "1 for chosen, 0 for rejected answers. soft: the row's `wins`; for sampled answers, the "
        "share of their group that they beat by reward, ties counting half.",
    )


@register(SPPOConfig, "SPPO")
class SPPO(PairObjective[SPPOConfig]):
    """`φ = (h_c − (P_c − 1/2)/β)² + (h_r − (P_r − 1/2)/β)²`, h a response's log-ratio.

    Wu et al., arXiv 2405.00675, eq. 4.7 on a pair, β = 1/η: P = P(y ≻ π_t | x), and h is taken
    against π_t. With P_c = 1 and P_r = 0 it is TRL's `sppo_hard`. Force:
    `c_l = 2((P − 1/2)/β − h)` of the token's own response, divided by the pairs: the two sides are
    independent, so chosen is held up where a loss on the margin would let it fall.
    """

    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """The squared distances from the targets."""
        goals = (1.0, 0.0) if self.config.labels == "hard" else (chosen.wins, rejected.wins)
        total = torch.zeros_like(chosen.ratio)
        for answers, wins in zip((chosen, rejected), goals, strict=True):
            if wins is None:
                raise ConfigError(
                    "objective.labels",
                    "soft",
                    "the pairs have no `wins`, the probability of each answer to be preferred to "
                    "one of the policy; give them, or set labels: hard",
                )
            total = total + (answers.ratio - (wins - 0.5) / self.config.beta).square()
        return total


def reads_wins(config: object) -> bool:
    """Whether an objective of this config reads the pairs' `wins`."""
    return isinstance(config, SPPOConfig) and config.labels == "soft"


class CPOConfig(PairConfig):
    """Settings of contrastive preference optimisation; names and defaults are TRL's."""

    name: Literal["cpo"] = "cpo"
    beta: float = Field(default=0.1, gt=0, description="Scale β of the log-probabilities.")
    loss_type: Literal["sigmoid", "hinge", "ipo", "simpo"] = Field(
        default="sigmoid",
        description="Loss on the margin. ipo and simpo read means over an answer's tokens.",
    )
    label_smoothing: float = Field(
        default=0.0,
        ge=0,
        lt=0.5,
        description="Assumed share ε of pairs with swapped labels, of sigmoid and simpo.",
    )
    cpo_alpha: float = Field(
        default=1.0, ge=0, description="Weight of the chosen answers' negative log-likelihood."
    )
    simpo_gamma: float = Field(default=0.5, ge=0, description="Target margin γ of simpo.")
    alpha: float = Field(
        default=0.0,
        description="AlphaPO's α: an answer's reward is (1 − π^−α)/α in place of log π.",
    )

    @model_validator(mode="after")
    def _smooths(self) -> Self:
        if self.label_smoothing and self.loss_type in ("hinge", "ipo"):
            raise ConfigError(
                "objective.label_smoothing",
                self.label_smoothing,
                f"{self.loss_type} has no smoothed form; leave it out",
            )
        return self


@register(CPOConfig, "CPO")
class CPO(PairObjective[CPOConfig]):
    """`φ = −log σ(β m)` and the chosen answers' likelihood, `m = r_c − r_r`.

    Xu et al., arXiv 2401.08417, eq. 3. r is log π, its mean over tokens for `ipo` and `simpo`, or
    `(1 − e^{−α log π})/α` of it (AlphaPO, arXiv 2501.03884). Other forms: `max(0, 1 − β m)`,
    `(m − 1/(2β))²`, and SimPO's `−log σ(β m − γ)`. Force of `sigmoid`: `±β σ(−β m)`, plus on
    chosen and minus on rejected tokens, divided by the pairs; chosen tokens get
    `cpo_alpha` / (the step's chosen tokens) more.
    """

    needs_reference = False

    @property
    def averages(self) -> bool:
        """Whether rewards are means over tokens."""
        return self.config.loss_type in ("ipo", "simpo")

    @property
    def likelihood_weight(self) -> float:
        """`cpo_alpha`."""
        return self.config.cpo_alpha

    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """The loss of the margin between both rewards."""
        config = self.config
        margin = config.beta * (self._reward(chosen) - self._reward(rejected))
        if config.loss_type == "hinge":
            return torch.relu(1 - margin)
        if config.loss_type == "ipo":
            return ((margin - 0.5) / config.beta).square()
        if config.loss_type == "simpo":
            margin = margin - config.simpo_gamma
        noise = config.label_smoothing
        return -(1 - noise) * F.logsigmoid(margin) - noise * F.logsigmoid(-margin)

    def _reward(self, answers: Answers) -> Pairs:
        logp, alpha = answers.mean if self.averages else answers.logp, self.config.alpha
        return -torch.expm1(-alpha * logp) / alpha if alpha else logp


class ORPOConfig(PairConfig):
    """Settings of odds ratio preference optimisation."""

    name: Literal["orpo"] = "orpo"
    beta: float = Field(default=0.1, gt=0, description="Weight λ of the odds ratio.")


@register(ORPOConfig, "ORPO")
class ORPO(PairObjective[ORPOConfig]):
    """`φ = −β log σ(o_c − o_r)` and the chosen answers' likelihood, o the log-odds of an answer.

    Hong et al., arXiv 2403.07691, eq. 6 and 7: `o = a − log(1 − e^a)`, a the mean log π of the
    answer's tokens. The likelihood is that of the answer, as in the paper's eq. 2; TRL's trainer
    adds that of the prompt.
    """

    needs_reference = False
    averages = True
    likelihood_weight = 1.0

    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """−β log σ(o_c − o_r)."""
        odds = [side.mean - torch.log(-torch.expm1(side.mean)) for side in (chosen, rejected)]
        return -self.config.beta * F.logsigmoid(odds[0] - odds[1])


PairLoss = Callable[..., Pairs]
"""`(chosen: Answers, rejected: Answers, **settings) -> φ`, one number for each pair."""


class CustomConfig(PairConfig):
    """Settings of a loss on pairs of one's own."""

    name: Literal["custom"] = "custom"
    loss: str = Field(description="Dotted path of the function, such as my_losses.my_loss.")
    settings: dict[str, float] = Field(default={}, description="Arguments of the function by name.")
    needs_reference: bool = Field(
        default=True, description="Whether it reads log-ratios to the reference policy."
    )
    source_sha256: Sources | None = Field(
        default=None,
        exclude_if=lambda digests: digests is None,
        description="sha256 of the function's file and of those of its folder that it imports; "
        "default: as they are.",
    )

    @model_validator(mode="after")
    def _pin_sources(self) -> Self:
        if self.source_sha256 is None:
            digests = sources_of(self.loss)
            object.__setattr__(self, "source_sha256", digests)  # the config is frozen
        return self


@register(CustomConfig, "custom", in_forms=False)
class Custom(PairObjective[CustomConfig]):
    """`φ = loss(chosen, rejected, **settings)`, one number for each pair, from `Answers`.

    The loss's gradient by the log-probabilities is its force, so that nothing else has to be
    written.

    **Raises:** `ConfigError` for a function outside the modules that the environment allows,
    before importing it, for one that fails, and for one that does not return a finite number for
    each pair that depends on this pair's log-probabilities alone.
    """

    def __init__(self, config: CustomConfig) -> None:
        super().__init__(config)
        self._function: PairLoss = named_function(
            "objective.loss", config.loss, {}, config.source_sha256
        )
        # Forecasts build objectives without gradients.
        with torch.enable_grad(), running("objective.loss", config.loss):
            self._check()

    @property
    def needs_reference(self) -> bool:  # type: ignore[override]
        """As configured."""
        return self.config.needs_reference

    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """The function's value."""
        with running("objective.loss", self.config.loss):
            return self._function(chosen, rejected, **self.config.settings)

    def _check(self) -> None:
        """Tries the function on three pairs, with the chosen answers the likelier ones and not."""
        length = torch.tensor([2, 3, 5])
        right = moved = False
        for order in ((0, 1, 2, 3), (2, 3, 0, 1)):
            scores = -torch.arange(1.0, 13.0, dtype=torch.float64).view(4, 3).requires_grad_()
            a, b, c, d = (scores[row] for row in order)
            sides = Answers(a, b, length), Answers(c, d, length)
            value = self.pair_loss(*sides)
            right = isinstance(value, torch.Tensor) and value.shape == (3,) and value.requires_grad
            if right and bool(value.isfinite().all()):
                (slope,) = torch.autograd.grad(value[1], scores)
                moved |= bool(slope[:, 1].any())
                right = bool(slope.isfinite().all()) and not slope[:, [0, 2]].any()
            if not right:
                break
        if not (right and moved):
            raise ConfigError(
                "objective.loss",
                self.config.loss,
                "must return one finite number for each pair, which depends on the "
                "log-probabilities of this pair alone",
            )
