"""One step's entries in a ledger, and what it hands to the step before."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from dynolab.forces.step.one_step import norm_of
from dynolab.forces.step.optimizers import (
    Clipping,
    OptimizerMap,
    Removal,
    clipping_of,
    is_linear,
    optimizer_map,
    with_clip_factor,
)
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

    `lines[i]` belongs to response `responses[i]`: what this step and later ones would have lacked
    without it (`Removal`). `together` is what the gradient did beside the lines, through the clip
    factor and the second moment that the responses share. `before` and `after` are the functionals
    at both ends of the step, `predicted` is ⟨q̄, Δθ⟩ with the step's real Δθ, and `rounding` the
    part of it that the optimizer's formula does not give. `carried_in` is what the momentum that
    the step began with did from here on, `unexplained` what the part of the gradient did that no
    response made. `groups` are lines of several responses at once, by the group's name: what the
    step would have lacked without all of them, which is not the sum of their lines.
    `tokens` are those of some lines, `sources` the papers' measures of single answers; `blocks` the
    sums of the lines of each of `SIDES` through the parameters of a block (`block_of`).
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
    together: Float[Tensor, " functionals"]
    groups: Mapping[str, Float[Tensor, " functionals"]] = field(default_factory=dict)
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
            "together": self.together,
            "decay": self.decay,
            "momentum": self.carried_in,
            "unexplained": self.unexplained,
            "arithmetic": self.rounding,
            "residual": self.residual,
            "measured": self.measured,
        }


def joined(parts: Sequence[StepAccount]) -> StepAccount:
    """The entries of a step from those of some functionals each."""

    def columns(name: str, dim: int = 0) -> Float[Tensor, "*responses functionals"]:
        return torch.cat([getattr(part, name) for part in parts], dim)

    def by_name(name: str) -> dict[str, Float[Tensor, "functionals ..."]]:
        names = getattr(parts[0], name)
        return {key: torch.cat([getattr(part, name)[key] for part in parts]) for key in names}

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
        together=columns("together"),
        groups=by_name("groups"),
        tokens=tuple(line for part in parts for line in part.tokens),
        sources=tuple(measures for part in parts for measures in part.sources),
        blocks=by_name("blocks"),
    )


class StepMap(Protocol):
    """An optimizer's map of flat vectors, some of their numbers at a time."""

    @property
    def carry(self) -> float:
        """As `OptimizerMap.carry`."""

    @property
    def momentum(self) -> Float[Tensor, " parameters"]:
        """As `OptimizerMap.momentum`, of all parameters, on any device."""

    @property
    def linear(self) -> bool:
        """Whether the update is a linear function of the clipped gradient."""

    @property
    def clipping(self) -> Clipping:
        """How the step clips."""

    @property
    def clip_factor(self) -> float:
        """What the step multiplied its gradient by."""

    def at(self, columns: slice) -> OptimizerMap:
        """The map of some numbers, on the policy's device."""


@dataclass(frozen=True)
class RecordedMap:
    """The map of a recorded step, computed where it is asked for.

    `before`, `state`: the record's tensors as flat vectors, maybe on the host, and `gradient`, of
    its loss.
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
        keys = sorted({key for tensors in record.state.values() for key in tensors})
        room = memory_for(policy.home) // sum(w.nbytes for w in record.before.values())
        device = policy.home if len(keys) + 2 <= room else torch.device("cpu")
        state = {
            key: flatten({name: record.state[name][key] for name in record.before}).to(device)
            for key in keys
        }
        facts = with_clip_factor(record.facts, norm_of([gradient]))
        return cls(facts, policy, flatten(record.before).to(device), state, gradient)

    @property
    def carry(self) -> float:
        """How much momentum is left after a step."""
        return self.at(slice(0, 1)).carry

    @property
    def momentum(self) -> Float[Tensor, " parameters"]:
        """Before the step."""
        key = "exp_avg" if self.facts.optimizer.name == "adamw" else "momentum_buffer"
        return self.state.get(key, torch.zeros_like(self.before))

    @property
    def linear(self) -> bool:
        """Whether the update is a linear function of the clipped gradient."""
        return is_linear(self.facts.optimizer)

    @property
    def clipping(self) -> Clipping:
        """How the step clips."""
        return clipping_of(self.facts)

    @property
    def clip_factor(self) -> float:
        """What the step multiplied its gradient by."""
        return self.facts.clip_factor

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
        place = bisect_right(self._stops, columns.start)
        weight = [*self.after.values()][place]
        first = columns.start - self._stops[place] + weight.numel()
        return weight.detach().flatten()[first : first + len(before)].to(before) - before


@dataclass(frozen=True)
class StepMade:
    """What an optimizer step was made of: parts of its gradient, its map, and its change Δθ.

    `gradients`, of responses, may be on the host. `blocks`: columns of flat vectors by the block
    that they belong to (`block_columns`). `groups`: responses, by their place, that are looked at
    together.
    """

    number: int
    labels: tuple[Updating, ...]
    gradients: Float[Tensor, "responses parameters"]
    map: StepMap
    change: Change
    blocks: Mapping[str, Sequence[slice]]
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def parts(self, columns: slice, device: torch.device) -> Float[Tensor, "parts columns"]:
        """The gradient's parts that have lines: each response's, and below them each group's."""
        gradients = self.gradients[:, columns].to(device)
        sums = [gradients[list(members)].sum(0, keepdim=True) for members in self.groups.values()]
        return torch.cat([gradients, *sums])

    def removal(
        self,
        made: OptimizerMap,
        slopes: Float[Tensor, "functionals columns"],
        tail: Float[Tensor, "functionals columns"] | None = None,
    ) -> Removal:
        """What functionals would lack of the step, by some columns."""
        return Removal(made, self.map.linear, self.map.clip_factor, slopes, tail)

    @cached_property
    def factors(self) -> Float[Tensor, " parts"]:
        """What the step would have multiplied its gradient by without each part."""
        device = self.map.at(slice(0, 0)).out.device
        count = len(self.gradients) + len(self.groups)
        squares = torch.zeros(count, dtype=torch.float64, device=device)
        square = squares.new_zeros(())
        for _, columns in self.slices():
            parts = self.parts(columns, device)
            made = self.map.at(columns)
            squares += self.removal(made, parts[:0]).squares(parts)
            square += made.gradient.square().sum(dtype=torch.float64)
        return self.map.clipping.without(squares.sqrt(), square.sqrt(), self.map.clip_factor)

    def slices(self) -> Iterator[tuple[str, slice]]:
        """All columns, at most `SLICE` at once, with their block."""
        for block, columns in self.blocks.items():
            for stretch in columns:
                for start in range(stretch.start, stretch.stop, SLICE):
                    yield block, slice(start, min(start + SLICE, stretch.stop))


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
    count, device = len(start.values), start.values.device
    responses = len(step.gradients)

    def zeros(width: int) -> Float[Tensor, "functionals width"]:
        return start.values.new_zeros(count, width, dtype=torch.float64)

    # Columns: what functionals lack without each response and each group; what the whole gradient,
    # decay through momentum and the momentum before the step do from here on; what decay beside
    # momentum, the real change and its rounding do in this step.
    lines, from_here, in_step = zeros(responses + len(step.groups)), zeros(3), zeros(3)
    of_momentum = zeros(1)[:, 0]
    blocks = {block: zeros(2) for block in step.blocks}
    sides = [[label.side == side for label in step.labels] for side in SIDES]
    pushed = None if later is None else later.push
    if pushed is None and not whole:
        pushed = torch.empty_like(end.gradients)
    for block, columns in step.slices():
        made, parts = step.map.at(columns), step.parts(columns, device)
        # q̄, the mean of the slopes at both ends: along it a change has no second-order error.
        slopes = ((start.gradients[:, columns] + end.gradients[:, columns]) / 2).to(device)
        # U, how the functionals answer to what enters momentum: now (`push`) and later (`tail`).
        push = made.out * slopes
        sensitivity, tail = push, None
        if later is not None:
            sensitivity = later.at(columns, device).sensitivity_before(push, made.carry, gap)
            if made.carry:
                tail = sensitivity - push
        # What each response and group did: the update without it is another one, see `Removal`.
        lines_here = step.removal(made, slopes, tail).lines(parts, step.factors)
        lines += lines_here
        blocks[block] += torch.stack(
            [lines_here[:, :responses][:, side].sum(1) for side in sides], 1
        )

        # What moves the weights from here on: the gradient, decay and the momentum so far.
        gradient = made.gradient
        entering = torch.stack([made.into * gradient, made.pull, made.momentum])
        from_here -= products(sensitivity, entering)
        # What moves them in this step alone, and what the formula misses of the real change.
        change = step.change.at(columns).to(slopes)
        by_formula = made.history - made.scale * gradient
        in_step += products(slopes, torch.stack([made.direct, change, change - by_formula]))
        # Momentum as the next record has it differs from the formula's by rounding.
        if later is not None and left is not None:
            beside = left[columns].to(slopes) - (
                made.carry * made.momentum + made.into * gradient + made.pull
            )
            acting = later.at(columns, device).sensitivity
            of_momentum -= made.carry * products(acting, beside[None])[:, 0]
        # In place: the slopes at the end are read, and U takes as much memory.
        end.gradients[:, columns] = sensitivity
        if pushed is not None:
            pushed[:, columns] = push
    total, pull, momentum = from_here.T
    direct, predicted, rounding = in_step.T
    account = StepAccount(
        step=step.number,
        responses=step.labels,
        lines=lines[:, :responses].T,
        decay=direct + pull,
        carried_in=step.map.carry * momentum,
        before=start.values,
        after=end.values,
        predicted=predicted,
        rounding=rounding + of_momentum,
        unexplained=torch.zeros_like(predicted),
        together=total - lines[:, :responses].sum(1),
        groups=dict(zip(step.groups, lines[:, responses:].T, strict=True)),
        blocks=blocks,
    )
    return account, Later(end.gradients, pushed)


def step_made(
    record: StepRecord,
    policy: PolicyFunction,
    responses: StepResponses,
    groups: Mapping[str, Collection[str]] | None = None,
) -> StepMade:
    """What a recorded step was made of; its optimizer is one map of flat vectors.

    These are on the host where the device has no room for them.

    **Arguments:** `groups`: ids of examples whose responses are looked at together, by the group's
    name; one without an example in the step has no line there.
    """
    members = {
        name: [place for place, label in enumerate(responses.labels) if label.id in ids]
        for name, ids in (groups or {}).items()
    }
    made = RecordedMap.of(record, policy, responses.gradients.sum(0))
    return StepMade(
        number=record.facts.step,
        labels=responses.labels,
        gradients=responses.gradients,
        map=made,
        change=Change({name: record.after[name] for name in record.before}, made.before),
        blocks=block_columns(record.before),
        groups={name: places for name, places in members.items() if places},
    )
