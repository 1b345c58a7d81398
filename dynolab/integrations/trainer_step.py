"""One step of somebody's trainer: what its optimizer gets and does, and what each sequence did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab import distributed
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import (
    SLICE,
    NamedTensors,
    Weights,
    block_of,
    flatten,
    products,
)
from dynolab.forces.ledger.entries import SIDES, StepAccount
from dynolab.forces.ledger.functional import Functional, Slopes, slopes_of
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.ledger.recorded_map import Change
from dynolab.forces.ledger.trainer_passes import SequenceLines, TrainerPasses
from dynolab.forces.map.weighted import Updating
from dynolab.forces.step.optimizers import Clipping, Removal, UpdateFacts
from dynolab.integrations.optimizer import (
    FIRST_MOMENTS,
    SECOND_MOMENTS,
    OptimizerView,
    Part,
    ScaledGradients,
    config_of,
)
from dynolab.integrations.sharded import Share, at_weights, passes_of_ours
from dynolab.training.step_record import SECOND_MOMENT_AFTER, at_least_rounding

ROUNDED = {True: 0.05, False: 1e-3}
"""Under 16-bit arithmetic, and without: how much of a parameter's part may be left by rounding, as
a share of its sequences' lines without their signs. More is a part that no sequence explains."""

COARSE = {True: 2**-8, False: 1e-6}
"""The same where lines cancel, as a share of `Σ_j |q̄_j scale_j g_j|` over the parameter's numbers
(`_in_step`)."""


@dataclass
class BeforeStep:
    """A step between its gradient and its update.

    - `labels`: of its sequences.
    - `gradients`: how the step clips and scales them; the numbers themselves are in `parts`.
    - `before`: this rank's shares of the weights, one after the other.
    - `parts`: of each trained parameter what its step is made of, this rank's share.
    - `start`: the functionals before the step; `end`: after it, once they are known.
    - `slopes`: their slopes before the step, then the sum of those before and after it, until they
      are used.

    Of functionals and slopes each rank has its part of the sum over ranks until they are added up.
    """

    labels: tuple[Updating, ...]
    gradients: ScaledGradients
    before: Float[Tensor, " parameters"]
    parts: Mapping[str, Part]
    start: Float[Tensor, " functionals"]
    slopes: Float[Tensor, "functionals size"] | None
    end: Float[Tensor, " functionals"] | None = None


@dataclass(frozen=True)
class StepSums:
    """What a rank finds of a step.

    `before`, `after`: the functionals at both ends; `in_step`: by parameter, sums over this rank's
    share of its numbers, in the columns of `_in_step`; `by_formula`: the optimizer is of known
    form; `lines`: of this rank's sequences, by parameter.
    """

    step: int
    before: Float[Tensor, " functionals"]
    after: Float[Tensor, " functionals"]
    in_step: Mapping[str, Float[Tensor, "functionals 5"]]
    by_formula: bool
    lines: Mapping[str, SequenceLines]


class TrainerStep:
    """The steps of a trainer: read before their update, and accounted for after it.

    All ranks call each method together.

    **Arguments:** `route`: how slopes are taken; `passes`: the trainer's own; `parameters`: those
    that are trained; `has_all_weights`: every rank has all numbers of them; `sixteen_bit`: the
    trainer's arithmetic.
    """

    def __init__(
        self,
        policy: PolicyFunction,
        route: GroupedGradients,
        passes: TrainerPasses,
        optimizer: OptimizerView,
        parameters: Weights,
        functionals: Sequence[Functional],
        *,
        has_all_weights: bool,
        sixteen_bit: bool,
    ) -> None:
        self.shares = {name: Share.of(parameter) for name, parameter in parameters.items()}
        self._policy, self._route, self._passes = policy, route, passes
        self._optimizer, self._parameters = optimizer, parameters
        self._functionals = functionals
        self._has_all_weights, self._sixteen_bit = has_all_weights, sixteen_bit

    def read(self, labels: tuple[Updating, ...]) -> BeforeStep:
        """The step between its gradient and its update."""
        gradients, weights = self._optimizer.gradients(), self.weights()
        before = flatten(weights)
        parts = self._parts(before, gradients)
        start = self._slopes(weights)
        scaling = replace(gradients, by_name={})
        return BeforeStep(labels, scaling, before, parts, start.values, start.gradients)

    def weights(self) -> NamedTensors:
        """This rank's parts of the trained parameters as they are now."""
        weights = self._optimizer.weights()
        return {name: weight.to(self._policy.dtype) for name, weight in weights.items()}

    def read_end(self, step: BeforeStep, weights: NamedTensors) -> None:
        """Reads the answers after the step, which led to these weights."""
        step.end = self._slopes(weights, into=step.slopes).values

    def sums(self, step: BeforeStep, weights: NamedTensors, number: int) -> StepSums:
        """What this rank finds of the step; its slopes are let go of."""
        mean, step.slopes = step.slopes, None
        assert mean is not None and step.end is not None
        end = distributed.add_up(step.end)
        if self._has_all_weights:  # elsewhere each pass has added them up
            distributed.add_up(mean)
        mean.div_(2)  # q̄
        sizes = [share.size for share in self.shares.values()]
        slopes = dict(zip(self.shares, mean.split(sizes, dim=1), strict=True))
        change = Change(weights, step.before)
        parts, by_formula = self._realised(step.parts, change)
        gradients = step.gradients
        clipping, clip_factor = Clipping(), 1.0
        if by_formula:
            clipping, clip_factor = gradients.clipping, gradients.clip

        def removal(name: str, columns: slice) -> Removal:
            part, share = parts[name], self.shares[name]
            along = share.gathered(list(slopes[name]), columns)
            return Removal(part.gathered(share, columns), part.linear, clip_factor, along)

        # The passes' gradients are this rank's, of a loss that is scaled; the step's are means over
        # the ranks.
        scale = distributed.world_size() * gradients.scale
        count = len(self._functionals)
        with at_weights(self._parameters, step.before), passes_of_ours(self._policy.model):
            lines = self._passes.lines(removal, count, clipping, clip_factor, scale)
        in_step = _in_step(parts, slopes, change)
        return StepSums(number, step.start, end, in_step, by_formula, lines)

    def account(self, step: BeforeStep, sums: StepSums) -> StepAccount:
        """This rank's account of the step, with all ranks' sums over parameters."""
        in_step = self._over_shares(torch.stack(list(sums.in_step.values())))
        decay, carried_in, predicted, _, _ = in_step.sum(0).T  # over all parameters
        by_parameter = sums.lines.values()
        lines = torch.stack([of_parameter.lines for of_parameter in by_parameter]).sum(0)
        shares = torch.stack([of_parameter.shares for of_parameter in by_parameter]).sum(0)
        of_all = distributed.add_up(shares.sum(1))
        if sums.by_formula:
            unexplained = self._beside(sums.lines, in_step)
        else:  # what the optimizer did beside the gradient is no rounding
            unexplained = predicted - decay - carried_in - of_all
        return StepAccount(
            step=sums.step,
            responses=step.labels,
            lines=lines.T,
            decay=decay,
            carried_in=carried_in,
            before=sums.before,
            after=sums.after,
            predicted=predicted,
            rounding=torch.zeros_like(predicted),  # what is left when all ranks' lines are joined
            unexplained=unexplained,
            together=of_all - distributed.add_up(lines.sum(1)),
            blocks=_blocks(step.labels, sums.lines),
        )

    def _beside(
        self,
        sequence_lines: Mapping[str, SequenceLines],
        in_step: Float[Tensor, "parameters functionals 5"],
    ) -> Float[Tensor, " functionals"]:
        """What the gradient did beside its sequences, where that is more than rounding."""
        totals, reach = in_step[..., 3], in_step[..., 4]
        shares = [lines.shares for lines in sequence_lines.values()]
        sums = distributed.add_up(torch.stack([share.sum(1) for share in shares]))
        sizes = distributed.add_up(torch.stack([share.abs().sum(1) for share in shares]))
        beside, coarse = totals - sums, self._sixteen_bit
        # Of each parameter and functional; the last part is for parameters that do next to nothing.
        bound = ROUNDED[coarse] * sizes + COARSE[coarse] * reach + 1e-9 * reach.sum(0)
        return torch.where(beside.abs() > bound, beside, 0.0).sum(0)

    def _over_shares(self, mine: Float[Tensor, "*sums"]) -> Float[Tensor, "*sums"]:
        """A sum over the parameters, of which each rank has a share."""
        return mine if self._has_all_weights else distributed.add_up(mine)

    def _slopes(
        self,
        weights: NamedTensors,
        into: Float[Tensor, "functionals size"] | None = None,
    ) -> Slopes:
        with passes_of_ours(self._policy.model):
            return slopes_of(self._functionals, self._route, weights, into=into, dealt=True)

    def _parts(
        self, before: Float[Tensor, " parameters"], gradients: ScaledGradients
    ) -> dict[str, Part]:
        """What the optimizer's step is made of, parameter by parameter."""
        states = self._optimizer.states()
        sizes = [share.size for share in self.shares.values()]
        parts = {}
        for name, theta in zip(self.shares, before.split(sizes), strict=True):
            options, state, still = states[name]
            config, facts = config_of(self._optimizer.optimizer, options), None
            gradient = gradients.by_name[name]
            if config is None:  # an optimizer of unknown form may write into the gradient
                gradient = gradient.clone()
            else:
                facts = UpdateFacts(
                    step=int(state.get("step", 0)),
                    learning_rate=float(options["lr"]),
                    clip_factor=gradients.clip,
                    optimizer=config,
                )
            moments = {}
            for key in (*FIRST_MOMENTS, *SECOND_MOMENTS):
                if key in state:
                    moments[key] = state[key].clone()
            parts[name] = Part(facts, theta, moments, gradient, gradients.factor, still)
        return parts

    def _realised(self, parts: Mapping[str, Part], change: Change) -> tuple[dict[str, Part], bool]:
        """The optimizer's step by parameter, and whether it is of known form.

        Of one of unknown form each part is that along the gradient.
        """
        realised, floors = {}, {}
        # Momentum is one sum over all parameters only where all carry as much of it.
        carries = {part.at(slice(0, 0)).carry for part in parts.values()}
        if len(carries) == 1 and all(part.facts is not None for part in parts.values()):
            for name, (_, now, _) in self._optimizer.states().items():
                state = dict(parts[name].state)
                for key in SECOND_MOMENTS:
                    if key in now:
                        state[SECOND_MOMENT_AFTER] = after = now[key]
                        if self._sixteen_bit:
                            state[SECOND_MOMENT_AFTER] = after = at_least_rounding(after)
                            floors[name] = float(after.min()) if len(after) else math.inf
                realised[name] = replace(parts[name], state=state)
            of_ranks = distributed.gather(floors)  # each of its share
            for name, part in realised.items():
                if name in floors and part.facts is not None:
                    least = min(of_rank[name] for of_rank in of_ranks)
                    realised[name] = replace(part, facts=replace(part.facts, floor=least))
            return realised, True
        # The part of Δθ along g is −rate · g, with rate = −⟨Δθ, g⟩ / ‖g‖², and not against it.
        stop = 0
        for name, part in parts.items():
            start, stop = stop, stop + len(part.theta)
            both = torch.stack([change.at(slice(start, stop)), part.gradient])
            along, square = self._over_shares(products(both, part.gradient[None])[:, 0]).tolist()
            rate = max(0.0, -along / square) if square else 0.0
            realised[name] = replace(part, facts=None, rate=rate)
        return realised, False


def _in_step(
    parts: Mapping[str, Part],
    slopes: Mapping[str, Float[Tensor, "functionals size"]],
    change: Change,
) -> dict[str, Float[Tensor, "functionals 5"]]:
    """What moved the functionals in this step, by parameter, over this rank's share of its numbers.

    Columns: ⟨q̄, ·⟩ of weight decay, of earlier momentum, of the real change Δθ, and of what the
    gradient did, `−scale ⊙ g`. The last one is `Σ_j |q̄_j scale_j g_j|`, what the gradient would
    have done had all its numbers pulled the same way.
    """
    sums_of, stop = {}, 0
    for name, part in parts.items():
        start, stop = stop, stop + len(part.theta)
        sums = slopes[name].new_zeros(len(slopes[name]), 5, dtype=torch.float64)
        for first in range(start, stop, SLICE):
            columns = slice(first, min(first + SLICE, stop))
            inside = slice(columns.start - start, columns.stop - start)  # within the parameter
            update_map, along = part.at(inside), slopes[name][:, inside]
            by_gradient = update_map.scale * update_map.gradient
            moves = [
                update_map.direct - update_map.out * update_map.pull,
                -update_map.out * update_map.carry * update_map.momentum,
                change.at(columns),
                -by_gradient,
            ]
            sums[:, :4] += products(along, torch.stack(moves))
            sums[:, 4] += products(along.abs(), by_gradient.abs()[None])[:, 0]
        sums_of[name] = sums
    return sums_of


def _blocks(
    labels: Sequence[Updating], lines_of: Mapping[str, SequenceLines]
) -> dict[str, Float[Tensor, "functionals 2"]]:
    """The lines of each side through the parameters of a block."""
    of_side = [[label.side == side for label in labels] for side in SIDES]
    blocks: dict[str, Float[Tensor, "functionals 2"]] = {}
    for name, (lines, _) in lines_of.items():
        sums = torch.stack([lines[:, members].sum(1) for members in of_side], 1)
        blocks[block_of(name)] = blocks.get(block_of(name), 0) + sums
    return blocks
