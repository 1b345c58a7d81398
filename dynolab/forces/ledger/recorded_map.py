"""A recorded step as vectors over all parameters: its optimizer's map, and its change Δθ."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import flatten
from dynolab.forces.map.costs import memory_for
from dynolab.forces.step.one_step import norm_of
from dynolab.forces.step.optimizers import OptimizerMap, optimizer_map, with_clip_factor
from dynolab.training.step_record import StepFacts, StepRecord


@dataclass(frozen=True)
class RecordedMap:
    """The map of a recorded step, computed where it is asked for.

    All tensors are flat vectors, which may be on the host: `before` and `state` are the record's
    weights and optimizer state before the step, `gradient` is that of its loss before clipping.
    """

    facts: StepFacts
    policy: PolicyFunction
    before: Float[Tensor, " parameters"]
    state: Mapping[str, Float[Tensor, " parameters"]]
    gradient: Float[Tensor, " parameters"]

    @classmethod
    def of(
        cls, record: StepRecord, policy: PolicyFunction, gradient: Float[Tensor, " parameters"]
    ) -> Self:
        """The map of a record, whose tensors are on the host where the device has no room."""
        keys = sorted(set().union(*record.state.values()))
        vectors = len(keys) + 2  # beside the state the weights and the gradient
        vector_bytes = sum(weight.nbytes for weight in record.before.values())
        fits = vectors * vector_bytes <= memory_for(policy.home)
        device = policy.home if fits else torch.device("cpu")
        state = {}
        for key in keys:
            by_name = {name: record.state[name][key] for name in record.before}
            state[key] = flatten(by_name).to(device)
        facts = with_clip_factor(record.facts, norm_of([gradient]))
        return cls(facts, policy, flatten(record.before).to(device), state, gradient)

    @property
    def carry(self) -> float:
        """How much momentum is left after a step."""
        return self.at(slice(0, 1)).carry  # the same for all parameters

    @property
    def momentum(self) -> Float[Tensor, " parameters"]:
        """Before the step."""
        key = "exp_avg" if self.facts.optimizer.name == "adamw" else "momentum_buffer"
        return self.state.get(key, torch.zeros_like(self.before))

    def at(self, columns: slice) -> OptimizerMap:
        """The map of some numbers, on the policy's device."""

        def here(vector: Float[Tensor, " parameters"]) -> Float[Tensor, " columns"]:
            return vector[..., columns].to(self.policy.device, self.policy.dtype)

        state = {key: here(vector) for key, vector in self.state.items()}
        return optimizer_map(self.facts, here(self.before), state, here(self.gradient))


@dataclass(frozen=True)
class Change:
    """`Δθ = after − before`, some numbers at a time.

    `after`: by parameter, in the order of the flat vector `before`; either may be on the host.
    """

    after: Mapping[str, Float[Tensor, " ..."]]
    before: Float[Tensor, " parameters"]

    @cached_property
    def _stops(self) -> list[int]:
        return [*accumulate(weight.numel() for weight in self.after.values())]

    def at(self, columns: slice) -> Float[Tensor, " columns"]:
        """The change of numbers of one parameter."""
        before = self.before[columns]
        if not len(before):
            return before
        # The parameter in which the columns lie: the first one that stops behind their start.
        place = bisect_right(self._stops, columns.start)
        weight = [*self.after.values()][place]
        parameter_start = self._stops[place] - weight.numel()
        first = columns.start - parameter_start  # counted within the parameter
        return weight.detach().flatten()[first : first + len(before)].to(before) - before
