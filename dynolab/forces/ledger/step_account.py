"""One step's entries in a ledger, and what it hands to the step before."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Protocol, Self

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import SLICE, block_columns, flatten, products
from dynolab.forces.ledger.functional import Slopes
from dynolab.forces.ledger.responses import StepResponses
from dynolab.forces.map.costs import memory_for
from dynolab.forces.map.terms import SourceMeasures
from dynolab.forces.map.weighted import Updating
from dynolab.forces.step.optimizers import OptimizerMap, optimizer_map
from dynolab.training.step_record import StepFacts, StepRecord


@dataclass(frozen=True)
class TokenLines:
    """A line's tokens: what each did to a functional; they add up to the line.

    `response` and `functional` are row and column of the line.
    """

    response: int
    functional: int
    nats: Float[Tensor, " tokens"]


SIDES = ("chosen", "rejected")


@dataclass(frozen=True)
class StepAccount:
    """One step's entries, in nats; a column is a functional.

    `lines[i]` belongs to response `responses[i]`: what it did from this step to the last. `before`
    and `after` are the functionals at both ends of the step, `predicted` is ⟨q̄, Δθ⟩ with the
    step's real Δθ, and `rounding` the part of it that the optimizer's formula does not give.
    `carried_in` is what the momentum that the step began with did from here on, `unexplained` what
    the part of the gradient did that no response made.
    `tokens` are those of some lines, `sources` the papers' measures of single answers; `blocks` the
    sums of the lines of each of `SIDES` through the
    parameters of a block (`block_of`).
    """

    step: int
    responses: tuple[Updating, ...]
    lines: Float[Tensor, "responses functionals"]
    decay: Float[Tensor, " functionals"]
    carried_in: Float[Tensor, " functionals"]
    before: Float[Tensor, " functionals"]
    after: Float[Tensor, " functionals"]
    predicted: Float[Tensor, " functionals"]
    rounding: Float[Tensor, " functionals"]
    unexplained: Float[Tensor, " functionals"]
    tokens: tuple[TokenLines, ...] = ()
    sources: tuple[SourceMeasures, ...] = ()
    blocks: Mapping[str, Float[Tensor, "functionals 2"]] = field(default_factory=dict)

    @property
    def measured(self) -> Float[Tensor, " functionals"]:
        """The step's change of every functional."""
        return self.after - self.before

    @property
    def residual(self) -> Float[Tensor, " functionals"]:
        """What the slopes at both ends leave unexplained, measured − predicted."""
        return self.measured - self.predicted

    def parts(self) -> dict[str, Float[Tensor, " functionals"]]:
        """Sums over the responses of each side, and what else moved the functionals."""
        sides = {
            side: self.lines[[response.side == side for response in self.responses]].sum(0)
            for side in SIDES
        }
        return {
            **sides,
            "decay": self.decay,
            "momentum": self.carried_in,
            "unexplained": self.unexplained,
            "arithmetic": self.rounding,
            "residual": self.residual,
            "measured": self.measured,
        }


def joined(parts: Sequence[StepAccount]) -> StepAccount:
    """The entries of a step from those of some functionals each."""

    def columns(name: str, dim: int = 0) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts], dim)

    return replace(
        parts[0],
        lines=columns("lines", 1),
        decay=columns("decay"),
        carried_in=columns("carried_in"),
        before=columns("before"),
        after=columns("after"),
        predicted=columns("predicted"),
        rounding=columns("rounding"),
        unexplained=columns("unexplained"),
        tokens=tuple(own for part in parts for own in part.tokens),
        sources=tuple(own for part in parts for own in part.sources),
        blocks={name: torch.cat([part.blocks[name] for part in parts]) for name in parts[0].blocks},
    )


class StepMap(Protocol):
    """An optimizer's map of flat vectors, some of their numbers at a time."""

    @property
    def carry(self) -> float:
        """As `OptimizerMap.carry`."""

    @property
    def momentum(self) -> Tensor:
        """As `OptimizerMap.momentum`, of all parameters, on any device."""

    def at(self, columns: slice) -> OptimizerMap:
        """The map of some numbers, on the policy's device."""


@dataclass(frozen=True)
class RecordedMap:
    """The map of a recorded step, computed where it is asked for.

    `before`, `state`: the record's tensors as flat vectors, maybe on the host; `gradients`: of its
    responses.
    """

    facts: StepFacts
    policy: PolicyFunction
    before: Float[Tensor, " parameters"]
    state: Mapping[str, Float[Tensor, " parameters"]]
    gradients: Float[Tensor, "responses parameters"]

    @property
    def carry(self) -> float:
        """How much momentum is left after a step."""
        return self.at(slice(0, 1)).carry

    @property
    def momentum(self) -> Tensor:
        """Before the step."""
        key = "exp_avg" if self.facts.optimizer.name == "adamw" else "momentum_buffer"
        return self.state.get(key, torch.zeros_like(self.before))

    def at(self, columns: slice) -> OptimizerMap:
        """The map of some numbers, on the policy's device."""

        def here(vector: Tensor) -> Tensor:
            return vector[..., columns].to(self.policy.device, self.policy.dtype)

        state = {key: here(vector) for key, vector in self.state.items()}
        return optimizer_map(self.facts, here(self.before), state, here(self.gradients).sum(0))


@dataclass(frozen=True)
class Change:
    """`Δθ = after − before`, some numbers at a time.

    `after`: by parameter, in the order of the flat vector `before`; either may be on the host.
    """

    after: Mapping[str, Tensor]
    before: Float[Tensor, " parameters"]

    @cached_property
    def _stops(self) -> list[int]:
        return [*accumulate(own.numel() for own in self.after.values())]

    def at(self, columns: slice) -> Float[Tensor, " columns"]:
        """The change of numbers of one parameter."""
        before = self.before[columns]
        if not len(before):
            return before
        place = bisect_right(self._stops, columns.start)
        own = [*self.after.values()][place]
        first = columns.start - self._stops[place] + own.numel()
        return own.detach().flatten()[first : first + len(before)].to(before) - before


@dataclass(frozen=True)
class StepMade:
    """What an optimizer step was made of: its responses' gradients, its map, and its change Δθ.

    `gradients` may be on the host. `blocks`: columns of flat vectors by the block that
    they belong to (`block_columns`).
    `rest`: what the whole gradient has beside the responses' (zero if None): what is due to
    rounding, and what no response explains. `gradients` may lack the last parameters' columns.
    `total`: the whole gradient, where other ranks have responses, too.
    """

    number: int
    labels: tuple[Updating, ...]
    gradients: Float[Tensor, "responses explained"]
    map: StepMap
    change: Change
    blocks: Mapping[str, Sequence[slice]]
    rest: Float[Tensor, "2 parameters"] | None = None
    total: Float[Tensor, " parameters"] | None = None

    def entering(self, columns: slice, device: torch.device) -> Float[Tensor, "entries columns"]:
        """The responses' gradients by some parameters, and below them the rest's two parts."""
        own = self.gradients[:, columns].to(device)
        own = torch.nn.functional.pad(own, (0, columns.stop - columns.start - own.shape[1]))
        rest = own.new_zeros(2, own.shape[1]) if self.rest is None else self.rest[:, columns]
        return torch.cat([own, rest])

    def slices(self) -> Iterator[tuple[str, slice]]:
        """All columns, at most `SLICE` at once, with their block."""
        for block, columns in self.blocks.items():
            for whole in columns:
                for start in range(whole.start, whole.stop, SLICE):
                    yield block, slice(start, min(start + SLICE, whole.stop))


@dataclass(frozen=True)
class Later:
    """What an entered step leaves to the one entered next, some steps before it.

    `sensitivity`: U of the step; `push`: `out ⊙ q̄`, which only steps further away than one need.
    """

    sensitivity: Float[Tensor, "functionals parameters"]
    push: Float[Tensor, "functionals parameters"] | None

    def at(self, columns: slice, device: torch.device) -> Self:
        """The same of some parameters, on a device."""
        push = None if self.push is None else self.push[:, columns].to(device)
        return type(self)(self.sensitivity[:, columns].to(device), push)

    def sensitivity_before(
        self, push: Float[Tensor, "functionals parameters"], carry: float, gap: int
    ) -> Float[Tensor, "functionals parameters"]:
        """U of a step `gap` steps before, which pushes by `push`."""
        if gap == 1:
            return push + carry * self.sensitivity
        assert self.push is not None
        here = sum(carry**age * (1 - age / gap) for age in range(gap))
        there = sum(carry**age * age / gap for age in range(gap))
        return here * push + there * self.push + carry**gap * self.sensitivity


def account_of(
    step: StepMade,
    start: Slopes,
    end: Slopes,
    later: Later | None = None,
    gap: int = 1,
    *,
    whole: bool = True,
    left: Float[Tensor, " parameters"] | None = None,
) -> tuple[StepAccount, Later]:
    """A step's entries, and what the step before it needs.

    The gradients of `end`, and the push in `later`, are overwritten by those that are returned:
    beside them it takes the memory of `SLICE` parameters.

    **Arguments:**

    - `start`, `end`: slopes at both ends.
    - `later`: of the step entered last, `gap` steps after this one; without it momentum counts
      where it acts, as in a step that is looked at alone.
    - `whole`: the step before this one is entered next, so that no push is kept.
    - `left`: the momentum after this step, from the next step's record. It differs from the
      formula's by rounding. The next step applies the difference; this step's entries count it.
    """
    count, responses, device = len(start.values), len(step.gradients), start.values.device
    by_sensitivity = start.values.new_zeros(count, responses + 4, dtype=torch.float64)
    by_slope = start.values.new_zeros(count, 3, dtype=torch.float64)
    of_momentum = start.values.new_zeros(count, dtype=torch.float64)
    blocks = {block: start.values.new_zeros(count, 2, dtype=torch.float64) for block in step.blocks}
    sides = [[label.side == side for label in step.labels] for side in SIDES]
    pushed = None if later is None else later.push
    if pushed is None and not whole:
        pushed = torch.empty_like(end.gradients)
    for block, columns in step.slices():
        made, gradients = step.map.at(columns), step.entering(columns, device)
        mean = ((start.gradients[:, columns] + end.gradients[:, columns]) / 2).to(device)
        own = push = made.out * mean
        if later is not None:
            own = later.at(columns, device).sensitivity_before(push, made.carry, gap)
        # Products of rows with rows; the rest's parts and single vectors stand below the responses.
        entering = torch.cat([gradients * made.into, torch.stack([made.pull, made.momentum])])
        along = products(own, entering)
        by_sensitivity += along
        blocks[block] -= torch.stack([along[:, :-4][:, side].sum(1) for side in sides], 1)
        change = step.change.at(columns).to(mean)
        total = gradients.sum(0) if step.total is None else step.total[columns]
        by_formula = made.history - made.scale * total
        by_slope += products(mean, torch.stack([made.direct, change, change - by_formula]))
        if later is not None and left is not None:
            beside = left[columns].to(mean) - (
                made.carry * made.momentum + made.into * total + made.pull
            )
            acting = later.at(columns, device).sensitivity
            of_momentum -= made.carry * products(acting, beside[None])[:, 0]
        end.gradients[:, columns] = own
        if pushed is not None:
            pushed[:, columns] = push
    lines = -by_sensitivity[:, :-4].T
    rounded, beside_all, pull, momentum = by_sensitivity[:, -4:].T
    direct, predicted, rounding = by_slope.T
    account = StepAccount(
        step=step.number,
        responses=step.labels,
        lines=lines,
        decay=direct - pull,
        carried_in=-step.map.carry * momentum,
        before=start.values,
        after=end.values,
        predicted=predicted,
        rounding=rounding + of_momentum - rounded,
        unexplained=-beside_all,
        blocks=blocks,
    )
    return account, Later(end.gradients, pushed)


def step_made(record: StepRecord, policy: PolicyFunction, responses: StepResponses) -> StepMade:
    """What a recorded step was made of; its optimizer is one map of flat vectors.

    These are on the host where the device has no room for them.
    """
    keys = sorted({key for tensors in record.state.values() for key in tensors})
    gradients, size = responses.gradients, sum(w.nbytes for w in record.before.values())
    room = memory_for(policy.home) // size
    device = policy.home if len(keys) + 2 <= room else torch.device("cpu")

    def flat(weights: Mapping[str, Tensor]) -> Tensor:
        return flatten(weights).to(device)

    state = {key: flat({name: record.state[name][key] for name in record.before}) for key in keys}
    before = flat(record.before)
    return StepMade(
        number=record.facts.step,
        labels=responses.labels,
        gradients=gradients,
        map=RecordedMap(record.facts, policy, before, state, gradients),
        change=Change({name: record.after[name] for name in record.before}, before),
        blocks=block_columns(record.before),
    )
