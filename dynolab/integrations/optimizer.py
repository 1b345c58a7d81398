"""A trainer's own optimizer as an affine map of the gradient, some parameters at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.forces.step.optimizers import OptimizerMap, UpdateFacts, optimizer_map
from dynolab.training.config import OptimizerConfig

FIRST_MOMENTS = ("exp_avg", "momentum_buffer")
SECOND_MOMENTS = ("exp_avg_sq", "square_avg")
"""torch's names of what Adam and RMSprop keep of the squares."""


@dataclass(frozen=True)
class Part:
    """One parameter's step as flat vectors: weights, the optimizer's tensors, and gradient.

    `facts` are None for an optimizer of unknown form, whose step is `−rate` times the gradient and
    something else. `given` is the trainer's own gradient, which is `clip` times that of the loss.
    `still`: the optimizer leaves the parameter alone.
    """

    facts: UpdateFacts | None
    theta: Float[Tensor, " size"]
    state: Mapping[str, Float[Tensor, " size"]]
    given: Float[Tensor, " size"]
    clip: float = 1.0
    still: bool = False
    rate: float = 0.0

    @property
    def gradient(self) -> Float[Tensor, " size"]:
        """Of the loss, before clipping."""
        return self.given.to(self.theta) / self.clip

    def at(self, columns: slice) -> OptimizerMap:
        """The map of some of its numbers."""
        gradient = self.given[columns].to(self.theta) / self.clip
        zero = torch.zeros_like(gradient)
        if self.facts is None:
            rate = torch.full_like(zero, self.rate)
            return OptimizerMap(zero, 0.0, torch.ones_like(zero), zero, rate, zero)
        state = {key: value[columns].to(gradient) for key, value in self.state.items()}
        made = optimizer_map(self.facts, self.theta[columns], state, gradient)
        return replace(made, out=zero, direct=zero) if self.still else made


@dataclass(frozen=True)
class TrainerMap:
    """The maps of all trained parameters, computed where they are asked for."""

    parts: Sequence[Part]

    @property
    def carry(self) -> float:
        """As `OptimizerMap.carry`."""
        return self.parts[0].at(slice(0, 0)).carry

    @property
    def momentum(self) -> Tensor:
        """As `OptimizerMap.momentum`, of all parameters."""
        return torch.cat([part.at(slice(None)).momentum for part in self.parts])

    def at(self, columns: slice) -> OptimizerMap:
        """The map of some numbers of one parameter."""
        starts = list(accumulate((len(part.theta) for part in self.parts), initial=0))
        place = bisect_right(starts, columns.start) - 1
        own = slice(columns.start - starts[place], columns.stop - starts[place])
        return self.parts[place].at(own)


def config_of(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> OptimizerConfig | None:
    """One of torch's optimizers as ours; None for one of another form."""
    kind = type(optimizer)
    special = ("amsgrad", "maximize", "nesterov", "centered", "dampening")
    if any(group.get(option) for option in special):
        return None
    common = {"learning_rate": group["lr"], "weight_decay": group.get("weight_decay", 0.0)}
    if kind is torch.optim.SGD:
        return OptimizerConfig.model_construct(name="sgd", momentum=group["momentum"], **common)
    if kind is torch.optim.AdamW or (kind is torch.optim.Adam and not group["weight_decay"]):
        return OptimizerConfig.model_construct(
            name="adamw", betas=group["betas"], epsilon=group["eps"], **common
        )
    if kind is torch.optim.RMSprop:
        return OptimizerConfig.model_construct(
            name="rmsprop",
            momentum=group["momentum"],
            smoothing=group["alpha"],
            epsilon=group["eps"],
            **common,
        )
    return None
