"""torch's optimizers as affine maps of the gradient, the second moment frozen after the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dynolab.forces.function.weights import Weights
from dynolab.training.config import OptimizerConfig
from dynolab.training.step_record import SECOND_MOMENT_AFTER, StepFacts


@dataclass(frozen=True)
class FrozenUpdate:
    """What a step makes of the gradient: `Δθ = −scale ⊙ g + history`, by parameter name.

    `g` is the gradient of the loss before clipping. `scale` holds learning rate, clip factor,
    bias correction and preconditioner; the history does not depend on g. With the second moment
    frozen at its value after the step the map is affine in g, so it splits over sides, examples
    and tokens exactly.
    """

    scale: dict[str, Tensor]

    def along(self, gradient: Weights) -> dict[str, Tensor]:
        """The part of the update that a part of the gradient makes, −scale ⊙ g."""
        return {name: -self.scale[name] * g for name, g in gradient.items()}


@dataclass(frozen=True)
class UpdateFacts:
    """What `StepFacts` says of an update, for steps that no record holds."""

    step: int
    learning_rate: float
    clip_factor: float
    optimizer: OptimizerConfig


@dataclass(frozen=True)
class OptimizerMap:
    """One parameter's step with its momentum b: `b' = carry b + into ⊙ g + pull`,
    `Δθ = direct − out ⊙ b'`.

    g is the gradient before clipping; `into` holds the clip factor, `pull` the decay that goes
    through momentum, `direct` the decay that does not. The second moment is frozen at its value
    after the step. `momentum` is b before the step.
    """

    momentum: Tensor
    carry: float
    into: Tensor
    pull: Tensor
    out: Tensor
    direct: Tensor

    def at(self, columns: slice) -> OptimizerMap:
        """The map of some numbers of a flat parameter."""
        parts = ("momentum", "into", "pull", "out", "direct")
        return replace(self, **{name: getattr(self, name)[columns] for name in parts})

    @property
    def scale(self) -> Tensor:
        """What the step itself makes of the gradient: `Δθ = −scale ⊙ g + history`."""
        return self.out * self.into

    @property
    def history(self) -> Tensor:
        """What the step would do without this batch: momentum so far and weight decay."""
        return self.direct - self.out * (self.carry * self.momentum + self.pull)


def optimizer_map(
    facts: UpdateFacts | StepFacts, theta: Tensor, state: Mapping[str, Tensor], gradient: Tensor
) -> OptimizerMap:
    """One parameter's map of one realised step.

    **Arguments:**

    - `facts`: learning rate, clip factor, optimizer and number of the step.
    - `theta`: the parameter before the step.
    - `state`: the optimizer's tensors before the step, zero where missing, and the second moment
      after it (`SECOND_MOMENT_AFTER`). Without that one it comes from `gradient`, whose rounding
      decides it where responses cancel.
    - `gradient`: the whole gradient of the loss, before clipping.
    """
    return _MAPS[facts.optimizer.name](facts, theta, state, gradient)


def _sgd(
    facts: UpdateFacts | StepFacts, theta: Tensor, state: Mapping[str, Tensor], g: Tensor
) -> OptimizerMap:
    """`b' = μ b + κ g + λ θ`, `Δθ = −η b'`; κ the clip factor, b = 0 before the first step."""
    config = facts.optimizer
    return OptimizerMap(
        momentum=state.get("momentum_buffer", torch.zeros_like(g)),
        carry=config.momentum,
        into=torch.full_like(g, facts.clip_factor),
        pull=config.weight_decay * theta,
        out=torch.full_like(g, facts.learning_rate),
        direct=torch.zeros_like(g),
    )


def _adamw(
    facts: UpdateFacts | StepFacts, theta: Tensor, state: Mapping[str, Tensor], g: Tensor
) -> OptimizerMap:
    """Decoupled decay (Loshchilov & Hutter, arXiv 1711.05101), torch's order of operations.

    `m' = β₁ m + (1 − β₁) κ g`, `v' = β₂ v + (1 − β₂)(κ g)²`,
    `Δθ = −η λ θ − η/(1 − β₁ᵗ) · m'/D`, `D = √v'/√(1 − β₂ᵗ) + ε`.
    """
    eta, kappa, config = facts.learning_rate, facts.clip_factor, facts.optimizer
    beta1, beta2 = config.betas
    t = facts.step + 1
    v_after = state.get(SECOND_MOMENT_AFTER)
    if v_after is None:
        v = state.get("exp_avg_sq", torch.zeros_like(g))
        v_after = beta2 * v + (1 - beta2) * (kappa * g).square()
    denominator = v_after.sqrt() / (1 - beta2**t) ** 0.5 + config.epsilon
    return OptimizerMap(
        momentum=state.get("exp_avg", torch.zeros_like(g)),
        carry=beta1,
        into=torch.full_like(g, (1 - beta1) * kappa),
        pull=torch.zeros_like(g),
        out=eta / (1 - beta1**t) / denominator,
        direct=-eta * config.weight_decay * theta,
    )


def _rmsprop(
    facts: UpdateFacts | StepFacts, theta: Tensor, state: Mapping[str, Tensor], g: Tensor
) -> OptimizerMap:
    """`u = κ g + λ θ`, `v' = α v + (1 − α) u²`, `b' = μ b + u/(√v' + ε)`, `Δθ = −η b'`."""
    kappa, config = facts.clip_factor, facts.optimizer
    decay = config.weight_decay * theta
    v_after = state.get(SECOND_MOMENT_AFTER)
    if v_after is None:
        v = state.get("square_avg", torch.zeros_like(g))
        v_after = config.smoothing * v + (1 - config.smoothing) * (kappa * g + decay).square()
    denominator = v_after.sqrt() + config.epsilon
    return OptimizerMap(
        momentum=state.get("momentum_buffer", torch.zeros_like(g)),
        carry=config.momentum,
        into=kappa / denominator,
        pull=decay / denominator,
        out=torch.full_like(g, facts.learning_rate),
        direct=torch.zeros_like(g),
    )


_MAPS = {"sgd": _sgd, "adamw": _adamw, "rmsprop": _rmsprop}
