"""Adds up over a training what each response of each step did to what is watched, in nats.

Steps are entered from the last to the first.

With functionals q and weights θ_t, one step is `Δq_t = q(θ_{t+1}) − q(θ_t) = ⟨q̄_t, Δθ_t⟩ + O(η³)`,
the slope `q̄_t = ½ (∇q(θ_t) + ∇q(θ_{t+1}))` being the mean of both ends (the trapezoid rule). The
optimizer is `b_t = β b_{t−1} + into_t ⊙ g_t + pull_t`, `Δθ_t = direct_t − out_t ⊙ b_t`
(`OptimizerMap`), and `g_t = Σ_i g_{t,i}` the gradient of the batch's responses. With
`U_s = out_s ⊙ q̄_s + β U_{s+1}`, how q answers, in this and all later steps, to what enters momentum
at step s,

`Σ_t ⟨q̄_t, Δθ_t⟩ = Σ_s (Σ_i line(s, i) + together(s) + decay(s) + rounding(s)) + carried_in`:

- `line(s, i) = ⟨q̄_s, u_s(g_s) − u_s(g_s − g_{s,i})⟩ − β ⟨U_{s+1}, b_s(g_s) − b_s(g_s − g_{s,i})⟩`
  (`Removal`): what q would lack without response i of step s. u_s(g) and b_s(g) are the update and
  the momentum that the optimizer makes of a gradient g at step s, clip factor and second moment
  included. Later steps are taken as they were: momentum is linear in them, with their own clip
  factors and second moments;
- `together(s) = −⟨U_s, into_s ⊙ g_s⟩ − Σ_i line(s, i)`: what the responses did by sharing a clip
  factor and a second moment, which no single one of them would have done;
- `decay(s) = ⟨q̄_s, direct_s⟩ − ⟨U_s, pull_s⟩`: weight decay;
- `rounding(s) = ⟨q̄_s, Δθ_s − (direct_s − out_s ⊙ b_s)⟩ − β ⟨U_{s+1}, b'_s − b_s⟩`: what the
  trainer's own arithmetic did beside the formula. b' is the momentum that the next step really
  began with. Small steps in float32 lose digits where they are added to the weights. Under bf16 the
  trainer's gradient was another one than the sum of the g_{s,i}, which are taken in float32;
- `carried_in = −β ⟨U_0, b_{−1}⟩`: momentum from before the first step.

Momentum is charged to the response that it came from, however long ago. U needs what comes later:
the walk is backwards.

Where only some steps are entered, those between them have no slopes. Their `push_t = out_t ⊙ q̄_t`
is taken to lie on the line between a step's and that of the step L steps after it, which was
entered before: `U_s = Σ_{j<L} β^j ((1 − j/L) push_s + j/L push_{s+L}) + β^L U_{s+L}`. For L = 1
that is the U above. What later steps alone bring is `U_s − push_s`.

Where all steps are entered, slopes can be taken at some of the weights only (`Stretch`): at the
others they are taken to lie on a line, so that q̄ of each step is a mean of those at both ends of
its stretch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from dynolab.data.batches import by_length
from dynolab.errors import ConfigError
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import SLICE, Weights, flatten, unflatten
from dynolab.forces.ledger.entries import StepAccount, TokenLines, joined
from dynolab.forces.ledger.functional import Functional, Slopes, slopes_of
from dynolab.forces.ledger.gradient_files import GradientFiles
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.ledger.hardest_pulls import HardestPulls
from dynolab.forces.ledger.responses import StepResponses, step_responses
from dynolab.forces.ledger.step_account import Later, StepMade, entries_of, step_made
from dynolab.forces.ledger.stretches import ONE_STEP, Stretch
from dynolab.forces.map.costs import memory_for
from dynolab.forces.map.terms import source_measures
from dynolab.forces.map.weighted import scores_along
from dynolab.grouping import grouped
from dynolab.training.step_record import StepRecord

STEP = "step.safetensors"
"""File in which `Ledger.save` keeps the ledger's own state; each functional has further files."""

PULLS = "pulls."
"""Prefix in that file of the hardest pulls on a functional, before its number."""

COPIES = 3
"""Gradients of a functional in memory: at both ends of a stretch, and U.

Where steps are left out a fourth is the push of the step entered last (`Later.push`).
"""


@dataclass(frozen=True)
class Entered:
    """What the step that was entered last has left to the one before it.

    `start`, `end`: slopes at both ends of its stretch, None where they are not there; `later`: U
    and push.
    """

    start: Slopes | None = None
    end: Slopes | None = None
    later: Later | None = None


class Ledger:
    """The account of a training, step by step from the last back to the first.

    **Arguments:**

    - `policy`: the recorded model.
    - `functionals`: what is accounted for.
    - `batch_tokens`: bound of sequences × padded length of one forward; default: the policy's.
    - `by_token`: numbers of the functionals of one answer whose hardest pulls downwards are split
      into tokens (`HardestPulls`), and that have the papers' measures (`SourceMeasures`).
    - `groups`: ids of examples that have a line together in every step they are in, by the group's
      name: what the step would have lacked without all of them (`StepAccount.groups`).
    - `every_step`: every step is entered. Else steps may be left out.
    - `waiting`: a folder of its own. Functionals whose gradients do not fit into memory with the
      others' wait there for their turn in each step, and their numbers are the same up to rounding;
      without it all are in memory.
    - `memory_bytes`: for gradients of functionals; default: half of what is free on the device when
      the first step's own tensors are there.

    Memory: three gradients per functional at once, four where steps are left out, and one per
    response of a batch. Checked: `tests/costs/test_analyses.py`.
    """

    def __init__(
        self,
        policy: PolicyFunction,
        functionals: Sequence[Functional],
        *,
        batch_tokens: int | None = None,
        by_token: Sequence[int] = (),
        groups: Mapping[str, Collection[str]] | None = None,
        every_step: bool = True,
        waiting: Path | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self._policy, self._functionals = policy, functionals
        self._batch_tokens = batch_tokens or policy.batch_tokens
        self._pulls = {number: HardestPulls() for number in by_token}
        self._examples_of = groups or {}
        self._every_step = every_step
        self._waiting = None if waiting is None else GradientFiles(waiting)
        self._memory_bytes = memory_bytes
        # Numbers of the functionals that are in memory together, a range for each turn of a step.
        self._turns: list[range] = []
        # Of the step entered last, which comes after the next one to be entered: its number, the
        # weights before it, and the functionals there.
        self._after: (
            tuple[int, Float[Tensor, " parameters"], Float[Tensor, " functionals"]] | None
        ) = None
        # The momentum that this step began with: what the next one to be entered really left.
        self._momentum: Float[Tensor, " parameters"] | None = None
        # What it leaves to the next one: in memory where all functionals are there together, else
        # in the files of `_waiting`, and after `load` in those of `_resumed`.
        self._last_entered: Entered | None = None
        self._resumed: GradientFiles | None = None
        self._gradients: GroupedGradients | None = None
        # Slopes at the start of its stretch without their gradients, which alone are in files, by
        # the first number of a turn.
        self._starts: dict[int, Slopes] = {}

    def enter(
        self, record: StepRecord, *, gap: int = 1, stretch: Stretch = ONE_STEP
    ) -> StepAccount:
        """The entries of the step that is `gap` steps before the one entered last.

        **Arguments:** `stretch`: of steps between which slopes lie on a line (`in_stretches`); all
        of its steps are to be entered, and papers' measures are those of stretches of one step.

        **Raises:** `ConfigError` where `gap` is 1 and the record does not end where the one entered
        last begins, and for another gap in a ledger of all steps.
        """
        if gap > 1 and self._every_step:
            remedy = "must be 1 where every step is entered; set every_step=False"
            raise ConfigError("gap", gap, remedy)
        weights = flatten(record.before)
        if self._after is not None and gap == 1:
            next_step, before, _ = self._after
            check_follows(record, flatten(record.after), next_step, before)
        responses = step_responses(
            record,
            self._route(record),
            batch_tokens=self._batch_tokens,
            with_terms=bool(self._pulls),
        )
        step = step_made(record, self._policy, responses, self._examples_of)
        # Once: what waits in files is read by the turns that wrote it.
        self._turns = self._turns or self._plan_turns(weights.numel() * self._policy.dtype.itemsize)
        parts = [self._enter(rows, record, responses, step, gap, stretch) for rows in self._turns]
        entries = joined(parts)
        self._resumed = None
        self._after = (step.number, weights, entries.before)
        self._momentum = step.map.momentum if step.map.carry else None
        return entries

    def forget(self) -> None:
        """Forgets the steps entered so far: the next one is looked at alone."""
        self._after = self._last_entered = self._momentum = None

    def _plan_turns(self, size: int) -> list[range]:
        """Ranges of functionals that fit into memory together; a gradient takes `size` bytes."""
        count = at_once = len(self._functionals)
        if self._waiting is not None:
            memory = memory_for(self._policy.home, self._memory_bytes)
            copies = COPIES if self._every_step else COPIES + 1
            at_once = max(1, memory // (copies * size))
        return [range(count)[start : start + at_once] for start in range(0, count, at_once)]

    def _enter(
        self,
        rows: range,
        record: StepRecord,
        responses: StepResponses,
        step: StepMade,
        gap: int,
        stretch: Stretch,
    ) -> StepAccount:
        """The entries of some functionals; keeps what the step before needs of them."""
        entered = self._take(rows, stretch)
        start, end, later = entered.start, entered.end, entered.later
        del entered  # which would hold what is let go of below
        values_after = None
        if stretch.is_last:
            # The slopes where the stretch entered last began are those where this one ends; those
            # of a step further away are let go of before others are taken.
            end = start if gap == 1 else None
            start = None
            end = end or self._slopes(rows, record, record.after)
            start = self._slopes(rows, record, stretch.before or record.before)
        else:
            assert start is not None and end is not None and self._after is not None
            values_after = self._after[2][rows.start : rows.stop]
        entries, handed_on = entries_of(
            step,
            start,
            end,
            later,
            gap,
            every_step=self._every_step,
            momentum_after=self._momentum if gap == 1 else None,
            stretch=stretch,
            values_after=values_after,
        )
        del later  # and its memory
        if len(self._turns) == 1:
            # At the first step of a stretch U has taken the place of the slopes at its end.
            self._last_entered = Entered(start, end if stretch.place else None, handed_on)
        elif self._waiting is not None:
            self._leave_waiting(rows, stretch, start, end, handed_on)
        ids = [label.id for label in step.labels]
        lines_of = dict(zip(rows, entries.lines.T, strict=True))
        # By response, the functionals on which it has one of the hardest pulls.
        pulled: dict[int, list[int]] = {}
        for number, lines in lines_of.items():
            if number in self._pulls:
                for response in self._pulls[number].enter(lines, ids):
                    pulled.setdefault(response, []).append(number)
        sensitivity = dict(zip(rows, handed_on.sensitivity, strict=True))
        tokens = list(self._tokens(record, responses, step, sensitivity, pulled, lines_of))
        tokens.sort(key=lambda split: (split.functional, split.response))
        sources = []
        one_step = sorted(start.terms.items()) if stretch.steps == 1 else ()
        # Places are counted from the first functional of this turn.
        for place, terms in one_step:
            name = self._functionals[rows.start + place].name
            sources.append(source_measures(record, name, terms, end.terms[place], responses.terms))
        return replace(entries, tokens=tuple(tokens), sources=tuple(sources))

    def _take(self, rows: range, stretch: Stretch) -> Entered:
        """What the step that was entered last has left of some functionals.

        Nothing where no step was entered before; no slopes where they are to be taken anew.
        """
        if self._after is None:
            return Entered()
        if self._last_entered is not None:
            # Not kept here: the caller lets go of each as soon as it can.
            in_memory, self._last_entered = self._last_entered, None
            return in_memory
        files, device = self._resumed or self._waiting, self._policy.home
        assert files is not None
        # `save` links no slopes, so that after `load` there are none.
        slope = files.read("slope", rows, device)
        sensitivity = files.read("sensitivity", rows, device)
        assert sensitivity is not None
        start = None if slope is None else replace(self._starts[rows.start], gradients=slope)
        end = None
        if start is not None and not stretch.is_last:
            slope_at_end = files.read("slope-at-end", rows, device)
            assert slope_at_end is not None
            end = replace(start, gradients=slope_at_end)  # its values are not read again
        return Entered(start, end, Later(sensitivity, files.read("push", rows, device)))

    def _leave_waiting(
        self, rows: range, stretch: Stretch, start: Slopes, end: Slopes, later: Later
    ) -> None:
        """Writes what the step before needs of some functionals, for their next turn."""
        assert self._waiting is not None
        if stretch.is_last:  # a stretch's slopes, once
            self._waiting.write("slope", rows, start.gradients)
            without = start.gradients.new_empty(len(rows), 0)
            self._starts[rows.start] = replace(start, gradients=without)
            if stretch.place:
                self._waiting.write("slope-at-end", rows, end.gradients)
        _write(self._waiting, rows, later)

    def _tokens(
        self,
        record: StepRecord,
        responses: StepResponses,
        step: StepMade,
        sensitivity: Mapping[int, Float[Tensor, " parameters"]],
        pulled: Mapping[int, Sequence[int]],
        lines: Mapping[int, Float[Tensor, " responses"]],
    ) -> Iterator[TokenLines]:
        """Tokens of some lines: `∂s_l` along into ⊙ U, scaled so that they add up to the line.

        A line through the optimizer's map is no sum over tokens; the derivatives are its share of
        the step with clip factor and second moment frozen, which is one. Where that share has
        another sign than the line, there are no tokens.

        **Arguments:** `pulled`: responses, and the functionals of their lines; `lines`: by
        functional.
        """
        if not pulled:
            return
        before = self._policy.cast(record.before)
        into = []  # by slices, as the map takes several vectors of its length
        for start in range(0, len(step.change.before), SLICE):
            columns = slice(start, start + SLICE)
            into.append(step.map.at(columns).into.to(self._policy.home))
        into_momentum = torch.cat(into)
        # Responses that pull on the same functionals have forward passes together.
        together = grouped((tuple(columns), row) for row, columns in pulled.items())
        for functionals, rows in together.items():
            chosen = [responses.weighted[row] for row in rows]
            for places in by_length([response.sequence for response in chosen], self._batch_tokens):
                batch = [chosen[place] for place in places]
                along = (
                    unflatten(into_momentum * sensitivity[column], before) for column in functionals
                )
                # Functionals × the batch's tokens, answer after answer.
                nats = scores_along(self._policy, before, along, batch).double()
                answers = nats.split([len(response.targets) for response in batch], dim=1)
                for place, answer in zip(places, answers, strict=True):
                    row = rows[place]
                    for column, shares in zip(functionals, answer, strict=True):
                        line = float(lines[column][row])
                        scale = line / float(shares.sum() or 1.0)  # by 0 nothing
                        if scale > 0:
                            yield TokenLines(row, column, scale * shares)

    def save(self, folder: Path) -> None:
        """Writes what the steps still to come need, so that `load` goes on from here.

        Between two stretches: within one, its slopes would be missing.
        """
        if self._after is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        step, weights, values = self._after
        file = {"step": torch.tensor(step), "weights": weights, "values": values}
        if self._momentum is not None:
            file["momentum"] = self._momentum
        file |= {f"{PULLS}{number}": pulls.nats for number, pulls in self._pulls.items()}
        save_file(file, folder / STEP)
        if self._last_entered is not None:
            # U and push, without the slopes.
            assert self._last_entered.later is not None
            _write(GradientFiles(folder), range(len(values)), self._last_entered.later)
        elif self._waiting is not None:
            for kind in ("sensitivity", "push"):
                self._waiting.link(kind, folder)

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote of a ledger of the same policy and functionals.

        Slopes are not among it; they are taken once more.
        """
        file = load_file(folder / STEP)
        values = file["values"].to(self._policy.device)
        self._after = int(file["step"]), file["weights"], values
        self._momentum = file.get("momentum")
        self._pulls = {number: HardestPulls(file[f"{PULLS}{number}"]) for number in self._pulls}
        self._last_entered, self._resumed = None, GradientFiles(folder)

    def _slopes(self, rows: range, record: StepRecord, at: Weights) -> Slopes:
        functionals = self._functionals[rows.start : rows.stop]
        return slopes_of(
            functionals,
            self._route(record),
            at,
            batch_tokens=self._batch_tokens,
            terms_of=[number - rows.start for number in self._pulls if number in rows],
        )

    def _route(self, record: StepRecord) -> GroupedGradients:
        """How gradients of many answers are taken at once, found at the first step."""
        if self._gradients is None:
            answers = [term.sequence for q in self._functionals for term in q.terms]
            self._gradients = GroupedGradients.build(self._policy, record.before, answers[:2])
        return self._gradients


def _write(files: GradientFiles, rows: range, later: Later) -> None:
    files.write("sensitivity", rows, later.sensitivity)
    if later.push is not None:
        files.write("push", rows, later.push)


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
