"""Direct preference optimisation: the losses of TRL's `DPOConfig`, and mixtures of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Self, cast, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from dynolab.data.batches import REJECTED, TokenBatch
from dynolab.errors import check_settings
from dynolab.objectives.pairs import Answers, PairConfig, PairObjective, Pairs
from dynolab.objectives.registration import register

OnMargin = Literal["sigmoid", "robust", "hinge", "exo_pair", "discopop", "ipo", "sigmoid_norm"]
OnRatios = Literal["nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down", "dpop", "shift"]
LossType = OnMargin | OnRatios | Literal["sft"]
"""TRL's names, and `dpop` and `shift`, which it lacks. `aot` and `aot_unpaired` sort a batch, so
that no pair has a force of its own, and are left out."""
_AVERAGED = ("ipo", "sigmoid_norm")


class DPOConfig(PairConfig):
    """Settings of direct preference optimisation; names and defaults are TRL's."""

    name: Literal["dpo"] = "dpo"
    beta: float = Field(
        default=0.1, gt=0, description="Inverse temperature β of the implicit reward."
    )
    label_smoothing: float = Field(
        default=0.0,
        ge=0,
        lt=0.5,
        description="Assumed share ε of pairs with swapped labels.",
    )
    # Fields from here on are excluded at their defaults, so that older results keep their keys.
    negative_dose: float = Field(
        default=1.0,
        ge=0,
        exclude_if=lambda dose: dose == 1.0,
        description="Factor on the push on rejected tokens.",
    )
    loss_type: tuple[LossType, ...] = Field(
        default=("sigmoid",),
        min_length=1,
        exclude_if=lambda types: types == ("sigmoid",),
        description="One or several of TRL's losses, which are added up: [sigmoid, sft] is RPO.",
    )
    loss_weights: tuple[float, ...] | None = Field(
        default=None,
        exclude_if=lambda weights: weights is None,
        description="Weight of each loss; default 1.",
    )
    f_divergence_type: Literal["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"] = (
        Field(
            default="reverse_kl",
            exclude_if=lambda kind: kind == "reverse_kl",
            description="Divergence from the reference whose derivative scores an answer.",
        )
    )
    f_alpha_divergence_coef: float = Field(
        default=0.5, exclude_if=lambda coef: coef == 0.5, description="α of alpha_divergence."
    )
    ld_alpha: float | None = Field(
        default=None,
        ge=0,
        le=1,
        exclude_if=lambda alpha: alpha is None,
        description="Factor on the tokens by which an answer is longer than the other (LD-DPO).",
    )
    discopop_tau: float = Field(
        default=0.05, gt=0, exclude_if=lambda tau: tau == 0.05, description="τ of discopop."
    )
    dpop_lambda: float = Field(
        default=50.0,
        ge=0,
        exclude_if=lambda weight: weight == 50.0,
        description="λ of dpop: weight of a chosen answer's fall below the reference.",
    )
    shift_lambda: float = Field(
        default=0.95,
        gt=0,
        le=1,
        exclude_if=lambda factor: factor == 0.95,
        description="f(λ) of shift: factor on the rejected answer's log-ratio.",
    )

    @field_validator("loss_type", mode="before")
    @classmethod
    def _one_or_several(cls, types: object) -> object:
        return (types,) if isinstance(types, str) else types

    @model_validator(mode="after")
    def _fits(self) -> Self:
        weights = self.loss_weights
        on_ratios = [loss for loss in self.loss_type if loss in get_args(OnRatios)]
        check_settings(
            (
                self.chooses_dose and self.negative_dose != 1,
                "objective.negative_dose",
                self.negative_dose,
                "designed_dose and calibrated choose the dose; leave it out",
            ),
            (
                weights is not None and (len(weights) != len(self.loss_type) or sum(weights) <= 0),
                "objective.loss_weights",
                list(weights or ()),
                f"give one weight for each of {list(self.loss_type)}, with a positive sum",
            ),
            (
                "exo_pair" in self.loss_type and not self.label_smoothing,
                "objective.label_smoothing",
                0.0,
                "exo_pair takes its logarithm; set it above 0",
            ),
            (
                bool(on_ratios) and self.f_divergence_type != "reverse_kl",
                "objective.f_divergence_type",
                self.f_divergence_type,
                f"{', '.join(on_ratios[:1])} reads log-ratios, not their margin; leave it out",
            ),
        )
        return self


def _exo(margin: Pairs, config: DPOConfig) -> Pairs:
    noise, up, down = config.label_smoothing, F.logsigmoid(margin), F.logsigmoid(-margin)
    return up.exp() * (up - math.log1p(-noise)) + down.exp() * (down - math.log(noise))


def _discopop(margin: Pairs, config: DPOConfig) -> Pairs:
    gate = torch.sigmoid(margin / config.discopop_tau)
    return (1 - gate) * -F.logsigmoid(margin) + gate * (-margin).exp()


def _smoothed(margin: Pairs, config: DPOConfig) -> Pairs:
    noise = config.label_smoothing
    return -(1 - noise) * F.logsigmoid(margin) - noise * F.logsigmoid(-margin)


_ON_MARGIN: dict[OnMargin, Callable[[Pairs, DPOConfig], Pairs]] = {
    "sigmoid": _smoothed,
    "robust": lambda m, c: (
        ((c.label_smoothing - 1) * F.logsigmoid(m) + c.label_smoothing * F.logsigmoid(-m))
        / (1 - 2 * c.label_smoothing)
    ),
    "hinge": lambda m, c: torch.relu(1 - m),
    "exo_pair": _exo,
    "discopop": _discopop,
    # With m = βd: (d − 1/(2β))².
    "ipo": lambda m, c: ((m - 0.5) / c.beta).square(),
    "sigmoid_norm": lambda m, c: -F.logsigmoid(m),
}
"""φ of m = β d, d the difference of both answers' scores; means for `ipo` and `sigmoid_norm`."""

_ON_RATIOS: dict[OnRatios, Callable[[Pairs, Pairs, DPOConfig], Pairs]] = {
    "nca_pair": lambda up, down, c: (
        -F.logsigmoid(up) - 0.5 * F.logsigmoid(-up) - 0.5 * F.logsigmoid(-down)
    ),
    "bco_pair": lambda up, down, c: -F.logsigmoid(up) - F.logsigmoid(-down),
    "sppo_hard": lambda up, down, c: ((up - 0.5).square() + (down + 0.5).square()) / c.beta**2,
    "apo_zero": lambda up, down, c: torch.sigmoid(-up) + torch.sigmoid(down),
    "apo_down": lambda up, down, c: torch.sigmoid(up) + torch.sigmoid(down - up),
    "dpop": lambda up, down, c: -F.logsigmoid(up - down - c.dpop_lambda * torch.relu(-up)),
    "shift": lambda up, down, c: -F.logsigmoid(up - c.shift_lambda * down),
}
"""φ of β h_c and β h_r."""


@register(DPOConfig, "DPO")
class DPO(PairObjective[DPOConfig]):
    """`φ = Σ_k w_k φ_k` over the config's losses; by default `−log σ(β d)`, `d = h_c − h_r`.

    | loss | φ, with m = β d, c = β h_c, r = β h_r | source (arXiv) |
    |---|---|---|
    | `sigmoid` | −(1 − ε) log σ(m) − ε log σ(−m); ε > 0 is conservative DPO | 2305.18290, eq. 7 |
    | `robust` | (−(1 − ε) log σ(m) + ε log σ(−m)) / (1 − 2ε) | 2403.00409 |
    | `hinge` | max(0, 1 − m) | 2309.06657 |
    | `ipo` | (d − 1/(2β))², d of means over tokens | 2310.12036, eq. 17 |
    | `sigmoid_norm` | −log σ(m), d of means over tokens | 2411.15124 |
    | `exo_pair` | KL of σ(m) to the labels (1 − ε, ε) | 2402.00856, eq. 16 |
    | `nca_pair` | −log σ(c) − ½ log σ(−c) − ½ log σ(−r) | 2402.05369 |
    | `bco_pair` | −log σ(c) − log σ(−r) | 2404.04656 |
    | `sppo_hard` | (h_c − 1/(2β))² + (h_r + 1/(2β))² | 2405.00675 |
    | `apo_zero` | σ(−c) + σ(r) | 2408.06266, eq. 7 |
    | `apo_down` | σ(c) + σ(r − c) | 2408.06266, eq. 8 |
    | `discopop` | logistic and exponential, mixed by σ(m/τ) | 2406.08414, eq. 5 |
    | `sft` | −log π of the chosen answers, a mean over all tokens of the step | 2404.19733 (RPO) |
    | `dpop` | −log σ(m − λ max(0, −c)) | 2402.13228 |
    | `shift` | −log σ(c − f(λ) r) | 2502.07599 |

    Scores are f′ of the divergence at the ratio (f-DPO, arXiv 2309.16240): h for reverse_kl,
    `1 − e^{−h}` for forward_kl, `log 2 + log σ(h)` for js_divergence and
    `(e^{(α − 1)h} − 1)/(α − 1)` for alpha_divergence.

    Force of `sigmoid` (Ren & Sutherland, arXiv 2407.10490, eq. 8): `c_l = +β(1 − ε − σ(β d))` on
    chosen and its negative on rejected tokens, divided by the step's pairs. With ε > 0 it changes
    sign where σ passes 1 − ε. The force of `robust` never falls below βε/(1 − 2ε).
    """

    @property
    def averages(self) -> bool:
        """Whether all of the losses read means over tokens."""
        return set(self.config.loss_type) <= set(_AVERAGED)

    def answers(
        self, logps: Float[Tensor, " tokens"], batch: TokenBatch
    ) -> tuple[Answers, Answers]:
        """Both sides' answers, the longer one's surplus tokens multiplied by `ld_alpha`."""
        if self.config.ld_alpha is not None:
            lengths = torch.stack(batch.by_side(batch.sequence_length)).amin(0).repeat(2)
            shared = torch.empty_like(lengths).scatter(0, batch.side_order, lengths)
            first = batch.sequence_length.cumsum(0) - batch.sequence_length
            place = torch.arange(len(logps), device=logps.device) - first[batch.sequence]
            surplus = place >= shared[batch.sequence]
            factor = torch.ones_like(logps).masked_fill(surplus, self.config.ld_alpha)
            assert batch.reference is not None
            batch = replace(batch, reference=factor * batch.reference)
            logps = factor * logps
        return super().answers(logps, batch)

    def doses(
        self, logps: Float[Tensor, " tokens"], batch: TokenBatch
    ) -> Float[Tensor, " tokens"] | None:
        """The batch's, and `negative_dose` on rejected tokens."""
        doses, factor = super().doses(logps, batch), self.config.negative_dose
        if factor != 1:
            factors = torch.ones_like(logps).masked_fill(batch.token_side == REJECTED, factor)
            doses = factors if doses is None else factors * doses
        return doses

    @property
    def likelihood_weight(self) -> float:
        """Weight of `sft`."""
        return dict(self._weighted()).get("sft", 0.0)

    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """Σ_k w_k φ_k, without `sft`, whose denominator is the step's."""
        config = self.config
        up, down = config.beta * chosen.ratio, config.beta * rejected.ratio
        total = torch.zeros_like(up)
        for kind, weight in self._weighted():
            if kind in get_args(OnRatios):
                total = total + weight * _ON_RATIOS[cast("OnRatios", kind)](up, down, config)
            elif kind != "sft":
                scores = self._score(chosen.ratio), self._score(rejected.ratio)
                if kind in _AVERAGED:
                    scores = scores[0] / chosen.length, scores[1] / rejected.length
                margin = config.beta * (scores[0] - scores[1])
                total = total + weight * _ON_MARGIN[cast("OnMargin", kind)](margin, config)
        return total

    def _weighted(self) -> list[tuple[LossType, float]]:
        weights = self.config.loss_weights or [1.0] * len(self.config.loss_type)
        return list(zip(self.config.loss_type, weights, strict=True))

    def _score(self, ratio: Pairs) -> Pairs:
        """f′ of the divergence at the ratio e^h."""
        if self.config.f_divergence_type == "forward_kl":
            return -torch.expm1(-ratio)
        if self.config.f_divergence_type == "js_divergence":
            return math.log(2) + F.logsigmoid(ratio)
        power = self.config.f_alpha_divergence_coef - 1
        if self.config.f_divergence_type == "alpha_divergence" and abs(power) >= 1e-6:
            return torch.expm1((power * ratio).clamp(max=80)) / power
        return ratio


class RobustDPOConfig(PairConfig):
    """Settings of robust direct preference optimisation: `dpo` with `loss_type: robust`."""

    name: Literal["robust_dpo"] = "robust_dpo"
    beta: float = Field(
        default=0.1, gt=0, description="Inverse temperature β of the implicit reward."
    )
    label_smoothing: float = Field(
        default=0.1,
        ge=0,
        lt=0.5,
        description="Known share ε of pairs with swapped labels.",
    )


class HingeConfig(PairConfig):
    """Settings of the hinge on DPO's margin: `dpo` with `loss_type: hinge`."""

    name: Literal["hinge"] = "hinge"
    beta: float = Field(
        default=0.1, gt=0, description="Inverse temperature β of the implicit reward."
    )


class SPINConfig(PairConfig):
    """Settings of self-play finetuning (Chen et al., arXiv 2401.01335).

    A pair is a row's own answer against one sampled from the policy at the beginning of an
    iteration, which is also the reference. An iteration is a rollout of a training on prompts:
    `updates_per_rollout` steps. Eq. 4.7 with the logistic loss is DPO's.
    """

    name: Literal["spin"] = "spin"
    beta: float = Field(default=0.1, gt=0, description="The paper's λ: inverse temperature.")


@register(RobustDPOConfig, "Robust DPO")
def _robust(config: RobustDPOConfig) -> DPO:
    return _with_loss(config, "robust")


@register(HingeConfig, "Hinge", heading="Hinge on DPO's margin")
def _hinge(config: HingeConfig) -> DPO:
    return _with_loss(config, "hinge")


@register(SPINConfig, "SPIN", in_forms=False)
def _spin(config: SPINConfig) -> DPO:
    return _with_loss(config, "sigmoid")


def _with_loss(config: PairConfig, loss_type: LossType) -> DPO:
    """DPO under the settings of one of its losses that has a name of its own."""
    settings = config.model_dump(exclude={"name", "designed_dose"})
    return DPO(DPOConfig(**settings, loss_type=(loss_type,)))
