"""torch's optimizers as affine maps of the gradient, the second moment frozen after the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dynolab.forces.function.logit_function import Weights
from dynolab.training.config import OptimizerConfig
from dynolab.training.step_record import StepFacts


@dataclass(frozen=True)
class FrozenUpdate:
    """`Δθ = −scale ⊙ g + history`, by parameter name.

    `g` is the gradient of the loss before clipping. `scale` holds learning rate, clip factor,
    bias correction and preconditioner; `history` what the step would do without this batch:
    momentum so far and weight decay. With the second moment frozen at its value after the step
    the map is affine in g, so it splits over sides, examples and tokens exactly.
    """

    scale: dict[str, Tensor]
    history: dict[str, Tensor]

    def along(self, gradient: Weights) -> dict[str, Tensor]:
        """The part of the update that a part of the gradient makes, −scale ⊙ g."""
        return {name: -self.scale[name] * g for name, g in gradient.items()}


def freeze_update(
    facts: StepFacts,
    before: Weights,
    state: Mapping[str, Mapping[str, Tensor]],
    gradient: Weights,
) -> FrozenUpdate:
    """The affine map of one realised step.

    **Arguments:**

    - `facts`: learning rate, clip factor, optimizer and number of the step.
    - `before`: weights before the step.
    - `state`: the optimizer's tensors before the step; what is missing is zero.
    - `gradient`: the whole gradient of the loss, before clipping.
    """
    parts = {
        name: _MAPS[facts.optimizer.name](facts, before[name], dict(state.get(name, {})), g)
        for name, g in gradient.items()
    }
    return FrozenUpdate(
        scale={name: part[0] for name, part in parts.items()},
        history={name: part[1] for name, part in parts.items()},
    )


def _sgd(
    facts: StepFacts, theta: Tensor, state: dict[str, Tensor], g: Tensor
) -> tuple[Tensor, Tensor]:
    """`b' = μ b + (κ g + λ θ)`, `Δθ = −η b'`; κ the clip factor, b = 0 before the first step."""
    eta, kappa, config = _numbers(facts)
    buffer = state.get("momentum_buffer", torch.zeros_like(g))
    scale = torch.full_like(g, eta * kappa)
    history = -eta * (config.momentum * buffer + config.weight_decay * theta)
    return scale, history


def _adamw(
    facts: StepFacts, theta: Tensor, state: dict[str, Tensor], g: Tensor
) -> tuple[Tensor, Tensor]:
    """Decoupled decay (Loshchilov & Hutter, arXiv 1711.05101), torch's order of operations.

    `m' = β₁ m + (1 − β₁) κ g`, `v' = β₂ v + (1 − β₂)(κ g)²`,
    `Δθ = −η λ θ − η/(1 − β₁ᵗ) · m'/D`, `D = √v'/√(1 − β₂ᵗ) + ε`.
    """
    eta, kappa, config = _numbers(facts)
    beta1, beta2 = config.betas
    t = facts.step + 1
    m = state.get("exp_avg", torch.zeros_like(g))
    v = state.get("exp_avg_sq", torch.zeros_like(g))
    v_after = beta2 * v + (1 - beta2) * (kappa * g).square()
    denominator = v_after.sqrt() / (1 - beta2**t) ** 0.5 + config.epsilon
    rate = eta / (1 - beta1**t) / denominator
    scale = rate * (1 - beta1) * kappa
    history = -eta * config.weight_decay * theta - rate * beta1 * m
    return scale, history


def _rmsprop(
    facts: StepFacts, theta: Tensor, state: dict[str, Tensor], g: Tensor
) -> tuple[Tensor, Tensor]:
    """`u = κ g + λ θ`, `v' = α v + (1 − α) u²`, `b' = μ b + u/(√v' + ε)`, `Δθ = −η b'`."""
    eta, kappa, config = _numbers(facts)
    v = state.get("square_avg", torch.zeros_like(g))
    buffer = state.get("momentum_buffer", torch.zeros_like(g))
    decay = config.weight_decay * theta
    v_after = config.smoothing * v + (1 - config.smoothing) * (kappa * g + decay).square()
    denominator = v_after.sqrt() + config.epsilon
    scale = eta * kappa / denominator
    history = -eta * (config.momentum * buffer + decay / denominator)
    return scale, history


def _numbers(facts: StepFacts) -> tuple[float, float, OptimizerConfig]:
    return facts.learning_rate, facts.clip_factor, facts.optimizer


_MAPS = {"sgd": _sgd, "adamw": _adamw, "rmsprop": _rmsprop}
