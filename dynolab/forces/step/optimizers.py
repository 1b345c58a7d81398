"""torch's optimizers: a step's update, and what it would lack without a part of its gradient.

An optimizer with momentum b makes of a clipped gradient a, at weights θ and with a second moment v,

    SGD       b' = μ b + a + λ θ                        Δθ = −η b'
    AdamW     b' = β₁ b + (1 − β₁) a,  v' = β₂ v + (1 − β₂) a²
              Δθ = −η λ θ − η/(1 − β₁ᵗ) · b' / (√v'/√(1 − β₂ᵗ) + ε)
    RMSprop   u = a + λ θ,  v' = α v + (1 − α) u²,  b' = μ b + u/(√v' + ε),  Δθ = −η b'

with `a = κ(g) g`, κ the factor that clips the whole gradient g. The sequences h_i of a batch share
an update in two ways:

- `Removal`: what the step would have lacked without a sequence, `u(g) − u(g − h_i)`, through the
  clip factor and the second moment. It is what leaving the sequence out of that step does.
- `FrozenUpdate`: its share `−scale ⊙ h_i` of the step as it was, with clip factor and second moment
  frozen after the step. Shares add up exactly, and tokens and layers are split along them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.forces.function.weights import NamedTensors, Weights, products
from dynolab.training.config import OptimizerConfig
from dynolab.training.step_record import SECOND_MOMENT_AFTER, StepFacts

Numbers = Float[Tensor, "*parameter"]
"""Of one parameter, in its shape or as a flat vector."""

Clipped = Float[Tensor, "*parts columns"]
"""Clipped gradients, a row each, of some numbers of a parameter."""


@dataclass(frozen=True)
class FrozenUpdate:
    """What a step makes of the gradient: `Δθ = −scale ⊙ g + history`, by parameter name.

    `g` is the gradient of the loss before clipping. `scale` holds learning rate, clip factor,
    bias correction and preconditioner; the history does not depend on g. With the second moment
    frozen at its value after the step the map is affine in g, so it splits over sides, examples
    and tokens exactly.
    """

    scale: NamedTensors

    def along(self, gradient: Weights) -> NamedTensors:
        """The part of the update that a part of the gradient makes, −scale ⊙ g."""
        return {name: -self.scale[name] * g for name, g in gradient.items()}


@dataclass(frozen=True)
class Clipping:
    """The factor by which a step multiplies its gradient g: `min(1, C / (‖g‖/s + ε)) / s`.

    `bound`: C, the largest global norm, infinite where nothing is clipped. `scale`: s, the factor
    on the loss that the step takes back. torch and DeepSpeed clip so, with ε = 1e-6.
    """

    bound: float = math.inf
    scale: float = 1.0

    def factor(self, norm: Float[Tensor, "*gradients"]) -> Float[Tensor, "*gradients"]:
        """The factors of gradients of these norms."""
        if math.isinf(self.bound):
            return torch.full_like(norm, 1 / self.scale)
        return (self.bound / (norm / self.scale + 1e-6)).clamp(max=1.0) / self.scale

    def without(
        self,
        norms: Float[Tensor, " parts"],
        norm: Float[Tensor, ""],
        realised: float,
    ) -> Float[Tensor, " parts"]:
        """The factors of gradients without a part, of these norms.

        Relative to the whole gradient's, whose norm here and `realised` factor in training differ
        by rounding: a part of nothing changes nothing.
        """
        return realised * self.factor(norms) / self.factor(norm)


def clipping_of(facts: StepFacts) -> Clipping:
    """How a recorded step clips.

    Records from before the bound was among their facts have it in the factor of a step that was
    clipped; of one that was not clipped it is unknown, and taken to be infinite.
    """
    if facts.clip_norm is not None:
        return Clipping(facts.clip_norm)
    if facts.clip_factor < 1:
        return Clipping(facts.clip_factor * (facts.grad_norm + 1e-6))
    return Clipping()


def with_clip_factor(facts: StepFacts, norm: Float[Tensor, ""]) -> StepFacts:
    """The facts, with the factor of a gradient of this norm where a changed batch has none, NaN."""
    if not math.isnan(facts.clip_factor):
        return facts
    return facts.model_copy(update={"clip_factor": float(clipping_of(facts).factor(norm))})


@dataclass(frozen=True)
class UpdateFacts:
    """What `StepFacts` says of an update, for steps that no record holds.

    `floor`: what 16-bit arithmetic leaves of the parameter's second moment at least.
    """

    step: int
    learning_rate: float
    clip_factor: float
    optimizer: OptimizerConfig
    floor: float = 0.0


class Stepped(NamedTuple):
    """What a step makes of a clipped gradient: momentum after it, and the change of the weights.

    Without the change that does not depend on the gradient, AdamW's decay.
    """

    momentum: Float[Tensor, "*shape"]
    change: Float[Tensor, "*shape"]


@dataclass(frozen=True)
class OptimizerMap:
    """One parameter's step with its momentum b: `b' = carry b + into ⊙ g + pull`,
    `Δθ = direct − out ⊙ b'`.

    g is the gradient before clipping; `into` holds the clip factor, `pull` the decay that goes
    through momentum, `direct` the decay that does not. The second moment is frozen at its value
    after the step. `momentum` is b before the step, `gradient` is g. `step_of` is the step without
    that freezing: of clipped gradients, a row each, and the columns of the parameter that they are
    of.
    """

    gradient: Numbers
    momentum: Numbers
    carry: float
    into: Numbers
    pull: Numbers
    out: Numbers
    direct: Numbers
    step_of: Callable[[Clipped, slice], Stepped]

    @property
    def scale(self) -> Numbers:
        """What the step itself makes of the gradient: `Δθ = −scale ⊙ g + history`."""
        return self.out * self.into

    @property
    def history(self) -> Numbers:
        """What the step would do without this batch: momentum so far and weight decay."""
        return self.direct - self.out * (self.carry * self.momentum + self.pull)

    def at_rest(self) -> OptimizerMap:
        """The map of a parameter that the optimizer leaves alone."""
        zero = torch.zeros_like(self.out)

        def nothing(clipped: Clipped, columns: slice) -> Stepped:
            return Stepped(torch.zeros_like(clipped), torch.zeros_like(clipped))

        return replace(self, out=zero, direct=zero, step_of=nothing)


def is_linear(optimizer: OptimizerConfig) -> bool:
    """Whether the update is a linear function of the clipped gradient."""
    return optimizer.name == "sgd"


def optimizer_map(
    facts: UpdateFacts | StepFacts,
    theta: Numbers,
    state: Weights,
    gradient: Numbers,
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
    facts: UpdateFacts | StepFacts,
    theta: Numbers,
    state: Weights,
    g: Numbers,
) -> OptimizerMap:
    config, rate = facts.optimizer, facts.learning_rate
    momentum = state.get("momentum_buffer", torch.zeros_like(g))
    pull = config.weight_decay * theta

    def step_of(clipped: Clipped, columns: slice) -> Stepped:
        after = clipped + (config.momentum * momentum[columns] + pull[columns])
        return Stepped(after, -rate * after)

    return OptimizerMap(
        gradient=g,
        momentum=momentum,
        carry=config.momentum,
        into=torch.full_like(g, facts.clip_factor),
        pull=pull,
        out=torch.full_like(g, rate),
        direct=torch.zeros_like(g),
        step_of=step_of,
    )


def _adamw(
    facts: UpdateFacts | StepFacts,
    theta: Numbers,
    state: Weights,
    g: Numbers,
) -> OptimizerMap:
    """Decoupled decay (Loshchilov & Hutter, arXiv 1711.05101), torch's order of operations."""
    config = facts.optimizer
    beta1, beta2 = config.betas
    t = facts.step + 1
    rate, root = facts.learning_rate / (1 - beta1**t), (1 - beta2**t) ** 0.5
    momentum = state.get("exp_avg", torch.zeros_like(g))
    second = state.get("exp_avg_sq", torch.zeros_like(g))
    second_after = state.get(SECOND_MOMENT_AFTER)
    if second_after is None:
        second_after = beta2 * second + (1 - beta2) * (facts.clip_factor * g).square()
    floor = _floor(facts, second_after)

    def step_of(clipped: Clipped, columns: slice) -> Stepped:
        divisor = torch.addcmul(beta2 * second[columns], clipped, clipped, value=1 - beta2)
        divisor = divisor.clamp_(min=floor).sqrt_().div_(root).add_(config.epsilon)
        after = torch.add(beta1 * momentum[columns], clipped, alpha=1 - beta1)
        return Stepped(after, torch.div(after, divisor, out=divisor).mul_(-rate))

    return OptimizerMap(
        gradient=g,
        momentum=momentum,
        carry=beta1,
        into=torch.full_like(g, (1 - beta1) * facts.clip_factor),
        pull=torch.zeros_like(g),
        out=rate / (second_after.sqrt() / root + config.epsilon),
        direct=-facts.learning_rate * config.weight_decay * theta,
        step_of=step_of,
    )


def _rmsprop(
    facts: UpdateFacts | StepFacts,
    theta: Numbers,
    state: Weights,
    g: Numbers,
) -> OptimizerMap:
    config, rate, smoothing = facts.optimizer, facts.learning_rate, facts.optimizer.smoothing
    momentum = state.get("momentum_buffer", torch.zeros_like(g))
    second = state.get("square_avg", torch.zeros_like(g))
    second_after = state.get(SECOND_MOMENT_AFTER)
    decay = config.weight_decay * theta
    if second_after is None:
        entering = facts.clip_factor * g + decay
        second_after = smoothing * second + (1 - smoothing) * entering.square()
    floor = _floor(facts, second_after)
    divisor_after = second_after.sqrt() + config.epsilon

    def step_of(clipped: Clipped, columns: slice) -> Stepped:
        entering = clipped + decay[columns]
        divisor = torch.addcmul(
            smoothing * second[columns], entering, entering, value=1 - smoothing
        )
        divisor = divisor.clamp_(min=floor).sqrt_().add_(config.epsilon)
        after = entering.div_(divisor).add_(config.momentum * momentum[columns])
        return Stepped(after, -rate * after)

    return OptimizerMap(
        gradient=g,
        momentum=momentum,
        carry=config.momentum,
        into=facts.clip_factor / divisor_after,
        pull=decay / divisor_after,
        out=torch.full_like(g, rate),
        direct=torch.zeros_like(g),
        step_of=step_of,
    )


_MAPS = {"sgd": _sgd, "adamw": _adamw, "rmsprop": _rmsprop}


def _floor(facts: UpdateFacts | StepFacts, second_after: Float[Tensor, " ..."]) -> float:
    """What 16-bit arithmetic leaves of a second moment at least (`at_least_rounding`)."""
    if isinstance(facts, UpdateFacts):
        return facts.floor
    if not facts.rounded or not second_after.numel():
        return 0.0
    return float(second_after.min())


def changes_without(
    update_map: OptimizerMap,
    parts: Float[Tensor, "parts columns"],
    clip_factor: float,
    factors: Float[Tensor, " parts"],
) -> Float[Tensor, "parts columns"]:
    """`u(g) − u(g − h)` of each part h of a parameter's gradient.

    **Arguments:** `clip_factor`: κ(g); `factors`: κ(g − h) of each part.
    """
    everything = slice(None)
    without = update_map.step_of(factors[:, None] * (update_map.gradient - parts), everything)
    return update_map.step_of(clip_factor * update_map.gradient, everything).change - without.change


CACHED, ON_GPU = 2**16, 2**24
"""Numbers that are stepped at once: what a CPU's caches hold, and what keeps a GPU busy."""


@dataclass(frozen=True)
class Removal:
    """What functionals would lack of a step without parts of its gradient; some parameters' share.

    The line of a part h of the gradient g, with `a = κ(g) g` and `a_h = κ(g − h) (g − h)`, is

        line(h) = ⟨q̄, u(a) − u(a_h)⟩ − ⟨tail, b'(a) − b'(a_h)⟩:

    the difference of the optimizer's own update with and without h at its own step, and what it
    leaves in momentum for later steps, which is linear. The lines of a batch need not add up to
    what its gradient did: the rest is made by parts together, through the clip factor and the
    second moment that they share.

    - `linear`: whether u is linear in the clipped gradient.
    - `clip_factor`: κ(g).
    - `slopes`: q̄, the functionals' slopes, a row each.
    - `sensitivity`: U, how the functionals answer to what enters momentum, in this step and later
      ones; the tail is what it has beyond this step's `out ⊙ q̄` (None without momentum, or where
      later steps do not count).
    """

    map: OptimizerMap
    linear: bool
    clip_factor: float
    slopes: Float[Tensor, "functionals columns"]
    sensitivity: Float[Tensor, "functionals columns"] | None = None

    def squares(self, parts: Float[Tensor, "parts columns"]) -> Float[Tensor, " parts"]:
        """These columns' share of `‖g − h‖²`, in float64."""
        total = parts.new_zeros(len(parts), dtype=torch.float64)
        for columns in self._chunks(len(parts)):
            left = self.map.gradient[columns] - parts[:, columns]
            total += left.square_().sum(1, dtype=torch.float64)
        return total

    def lines(
        self, parts: Float[Tensor, "parts columns"], factors: Float[Tensor, " parts"]
    ) -> Float[Tensor, "functionals parts"]:
        """These columns' share of the lines of parts of the gradient, in float64.

        **Arguments:** `factors`: κ(g − h) of each part.
        """
        if self.linear:
            # u is linear in a, and a − a_h = κ_h h + (κ − κ_h) g.
            ratio = factors.double() / self.clip_factor
            shares = self.shares(torch.cat([parts, self.map.gradient[None]]))
            return ratio * shares[:, :-1] + (1 - ratio) * shares[:, -1:]
        lines = self.slopes.new_zeros(len(self.slopes), len(parts), dtype=torch.float64)
        tail = None
        if self.sensitivity is not None:
            tail = self.sensitivity - self.map.out * self.slopes
        factors = factors.to(parts.dtype)[:, None]
        for columns in self._chunks(len(parts)):
            gradient = self.map.gradient[columns]
            with_all = self.map.step_of(self.clip_factor * gradient, columns)
            without = self.map.step_of((gradient - parts[:, columns]).mul_(factors), columns)
            lines += products(self.slopes[:, columns], with_all.change - without.change)
            if tail is not None:
                lines -= products(tail[:, columns], with_all.momentum - without.momentum)
        return lines

    def shares(self, parts: Float[Tensor, "parts columns"]) -> Float[Tensor, "functionals parts"]:
        """`−⟨U, into ⊙ h⟩`: lines with clip factor and second moment frozen."""
        sensitivity = self.sensitivity
        if sensitivity is None:
            sensitivity = self.map.out * self.slopes
        return -products(sensitivity * self.map.into, parts)

    def _chunks(self, rows: int) -> Iterator[slice]:
        """All columns, so many at once that a number of rows of them stays in the caches."""
        numbers = ON_GPU if self.map.gradient.device.type == "cuda" else CACHED
        width = max(1, numbers // max(1, rows))
        for start in range(0, len(self.map.gradient), width):
            yield slice(start, start + width)
