"""The ledger's mathematics: what each response of each step did to what is watched, in nats.

Steps are entered from the last to the first.

With functionals q and weights θ_t, one step is `Δq_t = q(θ_{t+1}) − q(θ_t) = ⟨q̄_t, Δθ_t⟩ + O(η³)`,
the slope `q̄_t = ½ (∇q(θ_t) + ∇q(θ_{t+1}))` being the mean of both ends (the trapezoid rule). The
optimizer is `b_t = β b_{t−1} + into_t ⊙ g_t + pull_t`, `Δθ_t = direct_t − out_t ⊙ b_t`
(`OptimizerMap`), and `g_t = Σ_i g_{t,i}` the gradient of the batch's responses. So

`Σ_t ⟨q̄_t, Δθ_t⟩ = Σ_s (Σ_i line(s, i) + decay(s) + rounding(s)) + carried_in`, with

- `U_s = out_s ⊙ q̄_s + β U_{s+1}`: how q answers, in this and all later steps, to what enters
  momentum at step s;
- `line(s, i) = −⟨U_s, into_s ⊙ g_{s,i}⟩`: all that response i did at step s, at once and later;
- `decay(s) = ⟨q̄_s, direct_s⟩ − ⟨U_s, pull_s⟩`: weight decay;
- `rounding(s) = ⟨q̄_s, Δθ_s − (direct_s − out_s ⊙ b_s)⟩`: what the trainer's own arithmetic did
  beside the formula; small steps in float32 lose digits where they are added to the weights;
- `carried_in = −β ⟨U_0, b_{−1}⟩`: momentum from before the first step.

Learning rate, warm-up, clipping and preconditioner are inside into and out. Momentum is charged
to the response that it came from, however long ago. U needs what comes later: the walk is
backwards.

Where only some steps are entered, `push_t = out_t ⊙ q̄_t` is taken to be linear between a step and
the one L steps after it, which was entered before: `U_s = Σ_{j<L} β^j ((1 − j/L) push_s + j/L
push_{s+L}) + β^L U_{s+L}`; for L = 1 that is the U above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from dynolab.errors import ConfigError
from dynolab.forces.function.blocks import block_columns
from dynolab.forces.function.logit_function import Weights
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.ledger.flat import flatten, unflatten
from dynolab.forces.ledger.functional import Functional, Slopes, slopes_of
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.ledger.responses import StepResponses, step_responses
from dynolab.forces.map.problem import Updating
from dynolab.forces.map.weighted import scores_along
from dynolab.forces.step.one_step import change_of
from dynolab.forces.step.optimizers import OptimizerMap, optimizer_map
from dynolab.training.step_record import StepRecord

SLICE = 2**18
"""Parameters that are multiplied at once in float64."""


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
    `carried_in` is what the momentum that the step began with did from here on.
    `tokens` are those of some lines; `blocks` the sums of the lines of each of `SIDES` through the
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
    tokens: tuple[TokenLines, ...] = ()
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
            "rounding": self.rounding,
            "residual": self.residual,
            "measured": self.measured,
        }


@dataclass(frozen=True)
class StepMade:
    """What an optimizer step was made of: its responses' gradients, its map, and its change Δθ."""

    number: int
    labels: tuple[Updating, ...]
    gradients: Float[Tensor, "responses parameters"]
    map: OptimizerMap
    change: Float[Tensor, " parameters"]


@dataclass(frozen=True)
class Later:
    """What an entered step leaves to the one entered next, some steps before it.

    `sensitivity`: U of the step; `push`: `out ⊙ q̄`, which only steps further away than one need.
    """

    sensitivity: Float[Tensor, "functionals parameters"]
    push: Float[Tensor, "functionals parameters"] | None

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
    step: StepMade, start: Slopes, end: Slopes, later: Later | None = None, gap: int = 1
) -> tuple[StepAccount, Later]:
    """A step's entries, and what the step before it needs.

    **Arguments:** `start`, `end`: slopes at both ends; `later`: of the step entered last, `gap`
    steps after this one; without it momentum counts where it acts, as in a step that is looked at
    alone.
    """
    made, mean = step.map, (start.gradients + end.gradients) / 2
    push = made.out * mean
    sensitivity = push if later is None else later.sensitivity_before(push, made.carry, gap)
    # Products of rows with rows; single vectors stand below the responses.
    entering = torch.cat([step.gradients * made.into, torch.stack([made.pull, made.momentum])])
    by_sensitivity = products(sensitivity, entering).T
    pull, momentum = by_sensitivity[-2:]
    by_formula = made.history - made.scale * step.gradients.sum(0)
    changes = torch.stack([made.direct, step.change, step.change - by_formula])
    direct, predicted, rounding = products(mean, changes).T
    account = StepAccount(
        step=step.number,
        responses=step.labels,
        lines=-by_sensitivity[:-2],
        decay=direct - pull,
        carried_in=-made.carry * momentum,
        before=start.values,
        after=end.values,
        predicted=predicted,
        rounding=rounding,
    )
    return account, Later(sensitivity, push)


class Ledger:
    """The account of a training, step by step from the last back to the first.

    **Arguments:**

    - `policy`: the recorded model.
    - `functionals`: what is accounted for.
    - `batch_tokens`: bound of sequences × padded length of one forward.
    - `by_token`: numbers of the functionals whose hardest line downwards of each step is split into
      tokens.
    - `whole`: every step is entered. Else steps may be left out.

    Memory: about three gradients per functional, four where steps are left out, and one per
    response of a batch.
    """

    def __init__(
        self,
        policy: PolicyFunction,
        functionals: Sequence[Functional],
        *,
        batch_tokens: int = 16_384,
        by_token: Sequence[int] = (),
        whole: bool = True,
    ) -> None:
        self._policy, self._functionals = policy, functionals
        self._batch_tokens, self._by_token = batch_tokens, by_token
        self._whole = whole
        self._next: _Next | None = None
        self._gradients: GroupedGradients | None = None

    def enter(self, record: StepRecord, *, gap: int = 1) -> StepAccount:
        """The entries of the step that is `gap` steps before the one entered last.

        **Raises:** `ConfigError` where `gap` is 1 and the record does not end where the one entered
        last begins, and for another gap in a ledger of all steps.
        """
        if gap > 1 and self._whole:
            raise ConfigError("gap", gap, "must be 1 where every step is entered; set whole=False")
        policy, after = self._policy, self._next
        weights = flatten(policy.cast(record.before))
        if after is not None and gap == 1:
            check_follows(record, flatten(policy.cast(record.after)), after.step, after.weights)
            end = after.slopes
        else:
            end = self._slopes(record, record.after)
        start = self._slopes(record, record.before)
        responses = step_responses(record, self._route(record), batch_tokens=self._batch_tokens)
        step = step_made(record, policy, responses)
        entries, later = account_of(step, start, end, None if after is None else after.later, gap)
        kept = replace(later, push=None) if self._whole else later
        self._next = _Next(record.facts.step, weights, start, kept)
        into = step.map.into
        tokens = [
            self._tokens(record, responses, into * later.sensitivity[number], number, entries)
            for number in self._by_token
        ]
        return replace(
            entries,
            tokens=tuple(tokens),
            blocks=_by_block(step, later.sensitivity, block_columns(record.before)),
        )

    def _tokens(
        self,
        record: StepRecord,
        responses: StepResponses,
        direction: Float[Tensor, " parameters"],
        functional: int,
        entries: StepAccount,
    ) -> TokenLines:
        """Tokens of the hardest line downwards: `line = Σ_l ∂s_l` along into ⊙ U."""
        hardest = int(entries.lines[:, functional].argmin())
        along, response = unflatten(direction, record.before), responses.weighted[hardest]
        nats = scores_along(self._policy, record.before, [along], [response])[0]
        return TokenLines(hardest, functional, nats.double())

    def save(self, file: Path) -> None:
        """Writes what the steps still to come need, so that `load` goes on from here."""
        if self._next is not None:
            save_file(self._next.tensors(), file)

    def load(self, file: Path) -> None:
        """Reads what `save` wrote of a ledger of the same policy and functionals."""
        tensors = load_file(file)
        device = self._policy.device
        self._next = _Next.of({name: tensor.to(device) for name, tensor in tensors.items()})

    def _slopes(self, record: StepRecord, at: Weights) -> Slopes:
        return slopes_of(
            self._functionals, self._route(record), at, batch_tokens=self._batch_tokens
        )

    def _route(self, record: StepRecord) -> GroupedGradients:
        """How gradients of many answers are taken at once, found at the first step."""
        if self._gradients is None:
            answers = [term.sequence for q in self._functionals for term in q.terms]
            self._gradients = GroupedGradients.build(self._policy, record.before, answers[:2])
        return self._gradients


def _by_block(
    step: StepMade,
    sensitivity: Float[Tensor, "functionals parameters"],
    columns: Mapping[str, Sequence[slice]],
) -> dict[str, Float[Tensor, "functionals 2"]]:
    """`−⟨U, into ⊙ Σ_i g_i⟩` over the responses of each side, block by block."""
    sides = [[response.side == side for response in step.labels] for side in SIDES]
    entering = step.map.into * torch.stack([step.gradients[own].sum(0) for own in sides])
    return {
        block: -torch.stack([products(sensitivity[:, at], entering[:, at]) for at in own]).sum(0)
        for block, own in columns.items()
    }


@dataclass(frozen=True)
class _Next:
    """The step entered last, which the next one entered comes before."""

    step: int
    weights: Float[Tensor, " parameters"]
    slopes: Slopes
    later: Later

    def tensors(self) -> dict[str, Tensor]:
        tensors = {
            "step": torch.tensor(self.step),
            "weights": self.weights,
            "values": self.slopes.values,
            "gradients": self.slopes.gradients,
            "sensitivity": self.later.sensitivity,
        }
        return tensors if self.later.push is None else {**tensors, "push": self.later.push}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> _Next:
        return cls(
            step=int(tensors["step"]),
            weights=tensors["weights"],
            slopes=Slopes(tensors["values"], tensors["gradients"]),
            later=Later(tensors["sensitivity"], tensors.get("push")),
        )


def check_follows(
    record: StepRecord,
    after: Float[Tensor, " parameters"],
    step: int,
    before: Float[Tensor, " parameters"],
) -> None:
    """Raises `ConfigError` unless a record's weights after it are those before a later step."""
    if not torch.equal(after, before):
        raise ConfigError(
            "records",
            record.facts.step,
            f"the weights after this step are not those before step {step}; give every step of one "
            "training, the last one first",
        )


def products(
    left: Float[Tensor, "rows parameters"], right: Float[Tensor, "columns parameters"]
) -> Float[Tensor, "rows columns"]:
    """`left rightᵀ` in float64, some parameters at a time.

    Sums over millions of float32 products would lose the digits in which an account closes.
    """
    total = left.new_zeros(len(left), len(right), dtype=torch.float64)
    for some, others in zip(left.split(SLICE, dim=1), right.split(SLICE, dim=1), strict=True):
        total += some.double() @ others.double().T
    return total


def step_made(record: StepRecord, policy: PolicyFunction, responses: StepResponses) -> StepMade:
    """What a recorded step was made of."""
    return StepMade(
        number=record.facts.step,
        labels=responses.labels,
        gradients=responses.gradients,
        map=_map_of(record, policy, responses.gradients.sum(0)),
        change=flatten(policy.cast(change_of(record.before, record.after))),
    )


def _map_of(
    record: StepRecord, policy: PolicyFunction, gradient: Float[Tensor, " parameters"]
) -> OptimizerMap:
    """The whole step as one map of flat vectors."""
    keys = sorted({key for tensors in record.state.values() for key in tensors})
    state = {
        key: flatten(policy.cast({name: record.state[name][key] for name in record.before}))
        for key in keys
    }
    return optimizer_map(record.facts, flatten(policy.cast(record.before)), state, gradient)
