"""One step's entries in a ledger, and what it hands to the step before."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import SLICE, SUMMED, block_columns, products
from dynolab.forces.ledger.entries import SIDES, Nats, StepAccount
from dynolab.forces.ledger.functional import Slopes
from dynolab.forces.ledger.recorded_map import Change, RecordedMap
from dynolab.forces.ledger.responses import StepResponses
from dynolab.forces.ledger.stretches import ONE_STEP, Stretch
from dynolab.forces.map.weighted import Updating
from dynolab.forces.step.optimizers import OptimizerMap, Removal, clipping_of, is_linear
from dynolab.training.step_record import StepRecord

CACHED = 2**19
"""Numbers that are read again and again at once: what a core's caches hold."""


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
    map: RecordedMap
    change: Change
    blocks: Mapping[str, Sequence[slice]]
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def parts(self, columns: slice, device: torch.device) -> Float[Tensor, "parts columns"]:
        """The gradient's parts that have lines: each response's, and below them each group's."""
        gradients = self.gradients[:, columns].to(device)
        rows = [gradients]
        for places in self.groups.values():
            rows.append(gradients[list(places)].sum(0, keepdim=True))
        return torch.cat(rows) if self.groups else gradients

    def removal(
        self,
        update_map: OptimizerMap,
        slopes: Float[Tensor, "functionals columns"],
        sensitivity: Float[Tensor, "functionals columns"] | None = None,
    ) -> Removal:
        """What functionals would lack of the step, by some columns."""
        facts = self.map.facts
        linear = is_linear(facts.optimizer)
        return Removal(update_map, linear, facts.clip_factor, slopes, sensitivity)

    @cached_property
    def factors(self) -> Float[Tensor, " parts"]:
        """κ(g − h): what the step would have multiplied its gradient by without each part h."""
        device = self.map.at(slice(0, 0)).out.device  # no columns: where the map computes
        count = len(self.gradients) + len(self.groups)
        squares = torch.zeros(count, dtype=torch.float64, device=device)  # ‖g − h‖²
        square = squares.new_zeros(())  # ‖g‖²
        for _, columns in self.slices(count):
            parts = self.parts(columns, device)
            update_map = self.map.at(columns)
            # `parts[:0]`, slopes of no functionals: a norm needs none.
            squares += self.removal(update_map, parts[:0]).squares(parts)
            square += update_map.gradient.square().sum(dtype=torch.float64)
        facts = self.map.facts
        return clipping_of(facts).without(squares.sqrt(), square.sqrt(), facts.clip_factor)

    def slices(self, rows: int) -> Iterator[tuple[str, slice]]:
        """All columns, some at once, with their block.

        So many are taken at once that `rows` rows of them stay in a CPU's caches while they are
        read again and again; on a GPU `SLICE`.
        """
        on_gpu = self.map.at(slice(0, 0)).out.device.type == "cuda"
        width = SLICE if on_gpu else min(SLICE, max(SUMMED, CACHED // rows))
        for block, columns in self.blocks.items():
            for stretch in columns:
                for start in range(stretch.start, stretch.stop, width):
                    yield block, slice(start, min(start + width, stretch.stop))


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
            return torch.add(push, self.sensitivity, alpha=carry)
        assert self.push is not None
        # The steps between push by what lies on the line between both ends' pushes.
        near = sum(carry**age * (1 - age / gap) for age in range(gap))
        far = sum(carry**age * age / gap for age in range(gap))
        return near * push + far * self.push + carry**gap * self.sensitivity


def entries_of(
    step: StepMade,
    start: Slopes,
    end: Slopes,
    later: Later | None = None,
    gap: int = 1,
    *,
    every_step: bool = True,
    momentum_after: Float[Tensor, " parameters"] | None = None,
    stretch: Stretch = ONE_STEP,
    values_after: Nats | None = None,
) -> tuple[StepAccount, Later]:
    """A step's entries, and what the step before it needs.

    The push in `later` is overwritten by the one that is returned. So are, by the sensitivity, the
    gradients of `end` where the step is the first of its stretch, else those in `later`. Beside
    them it takes the memory of `SLICE` parameters.

    **Arguments:**

    - `start`, `end`: slopes at both ends of the stretch of steps that this one is in.
    - `later`: of the step entered last, `gap` steps after this one; without it momentum counts
      where it acts, as in a step that is looked at alone.
    - `every_step`: the step before this one is entered next, so that no push is kept.
    - `momentum_after`: from the next step's record. It differs from the formula's by rounding. The
      next step applies the difference; this step's entries count it.
    - `values_after`: the functionals after the step, where its stretch does not end with it.
    """
    device = start.values.device
    responses = len(step.gradients)
    sums = _Sums.zeros(start.values, responses + len(step.groups))
    blocks = {block: sums.lines.new_zeros(len(start.values), 2) for block in step.blocks}
    of_side = [[label.side == side for label in step.labels] for side in SIDES]
    # This step's push, where the step before may be further away than one (`Later.push`); in the
    # memory of the last one's.
    pushed = None if later is None else later.push
    if pushed is None and not every_step:
        pushed = torch.empty_like(end.gradients)
    # U takes the place of slopes that are not read again, else of U of the step entered last.
    if stretch.place == 0:
        entered = end.gradients
    else:
        entered = torch.empty_like(end.gradients) if later is None else later.sensitivity
    if not step.map.carry:
        later = None  # without momentum no later step answers to this one's gradient
    for block, columns in step.slices(len(start.values) + responses):
        update_map = step.map.at(columns)
        # q̄, on the line between both ends: of a single step their mean, along which a change has
        # no second-order error.
        ends = start.gradients[:, columns], end.gradients[:, columns]
        slopes = torch.lerp(*ends, stretch.middle).to(device)
        # U, how the functionals answer to what enters momentum: now by the push, `out ⊙ q̄`, and in
        # later steps by the tail.
        push = update_map.out * slopes
        sensitivity, carried = push, None
        if later is not None:
            later_here = later.at(columns, device)
            sensitivity = later_here.sensitivity_before(push, update_map.carry, gap)
            carried = sensitivity if update_map.carry else None
            if momentum_after is not None:
                after = momentum_after[columns].to(slopes)
                sums.add_rounded_momentum(update_map, later_here.sensitivity, after)

        # What each response and group did: the update without it is another one, see `Removal`.
        parts = step.parts(columns, device)
        lines = step.removal(update_map, slopes, carried).lines(parts, step.factors)
        sums.lines += lines
        of_responses = lines[:, :responses]  # without the groups', which are these once more
        for column, members in enumerate(of_side):
            blocks[block][:, column] += of_responses[:, members].sum(1)

        sums.add_from_here(update_map, sensitivity)
        sums.add_in_step(update_map, slopes, step.change.at(columns).to(slopes))
        entered[:, columns] = sensitivity
        if pushed is not None:
            pushed[:, columns] = push
    values_after = end.values if values_after is None else values_after
    response_lines, group_lines = sums.lines[:, :responses], sums.lines[:, responses:]
    account = StepAccount(
        step=step.number,
        responses=step.labels,
        lines=response_lines.T,
        decay=sums.direct + sums.pull,
        carried_in=step.map.carry * sums.momentum,  # −β ⟨U, b⟩
        before=start.values if stretch.place == 0 else values_after - sums.predicted,
        after=values_after,
        predicted=sums.predicted,
        rounding=sums.rounding + sums.rounded_momentum,
        unexplained=torch.zeros_like(sums.predicted),  # a record's gradient is its responses' sum
        together=sums.gradient - response_lines.sum(1),
        groups=dict(zip(step.groups, group_lines.T, strict=True)),
        blocks=blocks,
    )
    return account, Later(entered, pushed)


@dataclass
class _Sums:
    """Sums over columns, in nats.

    `lines`: what functionals lack without each part of the gradient. `gradient`, `pull` and
    `momentum`: what the whole gradient, decay through momentum and the momentum before the step do
    from here on, by U. `direct`, `predicted` and `rounding`: what decay beside momentum, the real
    change and its rounding do in this step, by q̄. `rounded_momentum`: what rounding of the momentum
    does from the next step on.
    """

    lines: Float[Tensor, "functionals parts"]
    gradient: Nats
    pull: Nats
    momentum: Nats
    direct: Nats
    predicted: Nats
    rounding: Nats
    rounded_momentum: Nats

    @classmethod
    def zeros(cls, values: Nats, parts: int) -> Self:
        lines = values.new_zeros(len(values), parts, dtype=torch.float64)
        # Seven: the fields after `lines`.
        return cls(lines, *lines.new_zeros(7, len(values)))

    def add_from_here(
        self, update_map: OptimizerMap, sensitivity: Float[Tensor, "functionals columns"]
    ) -> None:
        """`−⟨U, ·⟩` of what enters momentum, `b' = carry b + into ⊙ g + pull`."""
        entering = [update_map.into * update_map.gradient, update_map.pull, update_map.momentum]
        effects = products(sensitivity, torch.stack(entering))
        self.gradient -= effects[:, 0]
        self.pull -= effects[:, 1]
        self.momentum -= effects[:, 2]

    def add_in_step(
        self,
        update_map: OptimizerMap,
        slopes: Float[Tensor, "functionals columns"],
        change: Float[Tensor, " columns"],
    ) -> None:
        """`⟨q̄, ·⟩` of what moves the weights, and of what the formula misses of Δθ."""
        by_formula = update_map.history - update_map.scale * update_map.gradient
        moves = torch.stack([update_map.direct, change, change - by_formula])
        effects = products(slopes, moves)
        self.direct += effects[:, 0]
        self.predicted += effects[:, 1]
        self.rounding += effects[:, 2]

    def add_rounded_momentum(
        self,
        update_map: OptimizerMap,
        sensitivity: Float[Tensor, "functionals columns"],
        after: Float[Tensor, " columns"],
    ) -> None:
        """`−β ⟨U, b' − b⟩` of the next step's U, b' the momentum that it really began with."""
        by_formula = (
            update_map.carry * update_map.momentum
            + update_map.into * update_map.gradient
            + update_map.pull
        )
        beside = after - by_formula
        effect = products(sensitivity, beside[None])[:, 0]
        self.rounded_momentum -= update_map.carry * effect


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
    places_of = {}
    for name, ids in (groups or {}).items():
        places = [place for place, label in enumerate(responses.labels) if label.id in ids]
        if places:
            places_of[name] = places
    update_map = RecordedMap.of(record, policy, responses.gradients.sum(0))
    return StepMade(
        number=record.facts.step,
        labels=responses.labels,
        gradients=responses.gradients,
        map=update_map,
        change=Change({name: record.after[name] for name in record.before}, update_map.before),
        blocks=block_columns(record.before),
        groups=places_of,
    )
