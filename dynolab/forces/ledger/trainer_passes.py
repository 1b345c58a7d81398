"""What each sequence of a batch did, by the trainer's own forward and backward passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dynolab.forces.function.calls import Call, recorded_calls
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.ledger.forwards import Forward, Outputs, RecordedForwards, differentiable
from dynolab.forces.ledger.grouped import GroupedGradients, add_call, groups_of
from dynolab.forces.ledger.pass_again import PassAgain, RuleSignal, replayed, rows_of, typed
from dynolab.forces.step.optimizers import Clipping, Removal
from dynolab.likelihood.token_logps import ResponseLogits

Removals = Callable[[str, slice], Removal]
"""What functionals would lack of a step by some columns of a parameter, by its name."""


class SequenceLines(NamedTuple):
    """What each sequence of a batch did by one parameter, in nats.

    `lines`: what the step would have lacked without it; `shares`: its share of the step with clip
    factor and second moment frozen, which adds up to what the whole gradient did.
    """

    lines: Float[Tensor, "functionals sequences"]
    shares: Float[Tensor, "functionals sequences"]


class TrainerPasses(RecordedForwards):
    """What a step would have lacked without each sequence of a trainer's forward passes.

    After the step the recorded passes are made again, at the same weights and from the same random
    state. Gradients of sequences are formed from a module's inputs and signals, by its rule, for
    some rows of a parameter and some sequences at a time; they are never held for all. Parameters
    without a rule have a backward pass per sequence. Gradient accumulation, the loss' scale and
    dropout are inside.

    **Arguments:**

    - `gradients`: rules that were tried on the model.
    - `model`: makes the passes again; the trainer's, without what compiles or distributes it.
    - `called`: what the trainer calls, of which `model` is the inside.
    - `arithmetic`: the precision of the trainer's passes.
    - `rounding`: share of a parameter's gradient by which its rule may differ from autograd: in the
      first pass they are compared, as a module may be called otherwise than where its rule was
      tried.
    - `temperature`: of the log-probabilities that a fused head gives.
    - `has_all_weights`: this rank holds all numbers of the weights. Otherwise rules are not
      compared, and parameters without one are left out.
    """

    def __init__(
        self,
        gradients: GroupedGradients,
        model: nn.Module,
        called: nn.Module,
        *,
        arithmetic: Callable[[], AbstractContextManager[Any]] = nullcontext,
        rounding: float = 1e-3,
        temperature: float = 1.0,
        has_all_weights: bool = True,
    ) -> None:
        super().__init__(called, gradients.policy.device)
        self.policy: PolicyFunction = gradients.policy
        parameters = dict(self.policy.model.named_parameters())
        self._parameters = {name: parameters[name] for name in gradients.names}
        self._rules = gradients.rules
        self._generic = gradients.generic if has_all_weights else frozenset()
        self._model = model
        self._arithmetic, self._rounding, self._temperature = arithmetic, rounding, temperature
        # Shares of weights allow no comparison with autograd.
        self._are_tried = not has_all_weights

    @torch.no_grad()
    def lines(
        self, removals: Removals, count: int, clipping: Clipping, clip_factor: float, scale: float
    ) -> dict[str, SequenceLines]:
        """The lines of every sequence on `count` functionals, by parameter.

        The model has the weights of the training's own passes. Removals are asked for in the same
        order on all ranks, whose passes are equally many.

        **Arguments:**

        - `removals`: the step by parameter, of which columns count as in the whole parameter.
        - `clipping`, `clip_factor`: how the step clips, and what it multiplied its gradient by.
        - `scale`: what the gradients of these passes are divided by.
        """
        by_forward = []
        for forward in self.forwards:
            with self._made_again(forward) as again:
                factors = self._factors(again, removals, clipping, clip_factor, scale)
                by_forward.append(self._lines(again, removals, count, factors, scale))
        lines_of = {}
        for name in self._parameters:
            parts = [of_forward[name] for of_forward in by_forward]
            lines = torch.cat([part.lines for part in parts], 1)
            shares = torch.cat([part.shares for part in parts], 1)
            lines_of[name] = SequenceLines(lines, shares)
        return lines_of

    def _lines(
        self,
        again: PassAgain,
        removals: Removals,
        count: int,
        factors: Float[Tensor, " sequences"],
        scale: float,
    ) -> dict[str, SequenceLines]:
        """The lines of one pass; `factors`: the step's clip factors without each sequence."""
        zeros = factors.new_zeros(2, count, len(factors))  # lines and shares
        lines_of = {name: SequenceLines(*zeros.clone()) for name in self._parameters}
        for name, rows in again.parts():
            removal = removals(name, rows.columns)
            for some, gradients in again.gradients(name, rows):
                gradients /= scale
                lines_of[name].lines[:, some] += removal.lines(gradients, factors[some])
                lines_of[name].shares[:, some] += removal.shares(gradients)
        return lines_of

    def _factors(
        self,
        again: PassAgain,
        removals: Removals,
        clipping: Clipping,
        clip_factor: float,
        scale: float,
    ) -> Float[Tensor, " sequences"]:
        """What the step would have multiplied its gradient by without each sequence."""
        squares = torch.zeros(again.sequences, dtype=torch.float64, device=self.policy.device)
        if math.isinf(clipping.bound):  # nothing is clipped, with or without a sequence
            return torch.full_like(squares, clip_factor)
        square = squares.new_zeros(())  # ‖g‖²; `squares` become ‖g − h‖² without each sequence
        for name, rows in again.parts():
            removal = removals(name, rows.columns)
            square += removal.map.gradient.square().sum(dtype=torch.float64)
            for some, gradients in again.gradients(name, rows):
                squares[some] += removal.squares(gradients.div_(scale))
        return clipping.without(squares.sqrt(), square.sqrt(), clip_factor)

    @contextmanager
    def _made_again(self, forward: Forward) -> Iterator[PassAgain]:
        """One forward pass, made again: what it gives is there while this is open."""
        policy, hidden = self.policy, list[Float[Tensor, "sequences length width"]]()
        with ExitStack() as stack:
            stack.enter_context(replayed(self._model, forward.draws, policy.device))
            stack.enter_context(self._arithmetic())

            # The last hidden state, of which a fused head's signals are made.
            def read_hidden(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
                hidden.append(output[0].detach())

            base: Any = policy.causal.base_model
            stack.callback(base.register_forward_hook(read_hidden).remove)
            with recorded_calls(self._rules, set()) as calls, torch.enable_grad():
                output = self._model(*forward.arguments, **forward.named)
            by_name = differentiable(output, len(forward.ids))
            outputs = [by_name[name] for name in forward.pulls]
            if not self._are_tried:
                self._try(forward, calls, outputs, hidden[0])  # may take rules away
            pulls = forward.pulls.values()
            of_calls = self._signals(forward, calls, outputs, pulls, bool(self._generic))
            signals = [signal for signal in of_calls if signal[0] in self._rules]
            if "logits" not in forward.pulls:  # a fused head, which is not called as a module
                for number in range(len(forward.ids)):
                    signals += self._head(forward, hidden[0], number)
            yield PassAgain(
                policy, self._parameters, self._rules, self._generic, forward, outputs, signals
            )

    def _signals(
        self,
        forward: Forward,
        calls: Sequence[Call],
        outputs: Sequence[Outputs],
        pulls: Iterable[Outputs],
        keeps_graph: bool,
    ) -> list[RuleSignal]:
        """The signals of the calls that the loss depends on."""
        device, dtype = self.policy.device, self.policy.dtype
        if not calls:  # no parameter has a rule
            return []
        deltas = torch.autograd.grad(
            outputs,
            [call.output for call in calls],
            [pull.to(device) for pull in pulls],
            retain_graph=keeps_graph,
            allow_unused=True,
        )
        numbers = torch.arange(len(forward.ids), device=device)
        signals = []
        for call, delta in zip(calls, deltas, strict=True):
            where = groups_of(call.output.shape[:-1], forward.ids.shape, numbers)
            if delta is not None and where is not None:
                signals.append((call.rule, *typed(call, delta, dtype), where))
        return signals

    def _try(
        self,
        forward: Forward,
        calls: Sequence[Call],
        outputs: Sequence[Outputs],
        hidden: Float[Tensor, "sequences length width"],
    ) -> None:
        """Takes rules away that give another gradient than autograd of the sequence pulled most."""
        self._are_tried = True
        # The loss pulls at each sequence by a weight; the hardest has the clearest gradient.
        strength = sum(p.flatten(1).abs().sum(1).double() for p in forward.pulls.values())
        number = int(torch.as_tensor(strength).argmax())
        pulls = forward.alone(number)
        signals = self._signals(forward, calls, outputs, pulls, keeps_graph=True)
        if "logits" not in forward.pulls:
            signals += self._head(forward, hidden, number)
        # By parameter: the norm of its gradient by autograd, and of what the rule's is beside it.
        norms: dict[str, tuple[float, float]] = {}

        def compare(name: str, truth: Float[Tensor, " ..."]) -> Float[Tensor, " ..."]:
            norms[name] = float(truth.norm()), self._apart(name, truth, signals, number)
            return truth.new_zeros(()).expand_as(truth)  # so that no gradient is kept

        with ExitStack() as hooks:
            for name, parameter in self._parameters.items():
                hook = parameter.register_hook(partial(compare, name))
                hooks.callback(hook.remove)
            zeros = torch.autograd.grad(
                outputs,
                list(self._parameters.values()),
                [pull.to(self.policy.device) for pull in pulls],
                retain_graph=True,
                allow_unused=True,
            )
        for (name, parameter), zero in zip(self._parameters.items(), zeros, strict=True):
            if zero is None:  # autograd has not come by
                compare(name, torch.zeros_like(parameter))
        # What rounding leaves of a gradient that is about zero.
        least = 1e-6 * max(norm for norm, _ in norms.values())
        wrong = {name for name, (norm, off) in norms.items() if off > self._rounding * norm + least}
        rules = []
        for rule in self._rules:
            if wrong.isdisjoint(rule.names):
                rules.append(rule)
            else:
                self._generic |= set(rule.names)
        self._rules = tuple(rules)
        self._generic |= wrong

    def _apart(
        self, name: str, truth: Float[Tensor, " ..."], signals: Sequence[RuleSignal], number: int
    ) -> float:
        """The norm of what a rule makes of one pulled sequence, less its gradient by autograd."""
        square, flat = 0.0, truth.flatten()
        for places, columns in rows_of(truth, self.policy.device) if truth.dim() else ():
            # Rows: the sequences before this one, this one, and those after it. Rules that tell
            # sequences apart give nothing to the first and last, as only this one is pulled.
            rows = flat.new_zeros(3, columns.stop - columns.start, dtype=self.policy.dtype)
            for rule, value, signal, where in signals:
                if name in rule.names:
                    row = (where >= number).long() + (where > number)
                    add_call(rule, value, signal, row, {name: rows}, places)
            rows[1] -= flat[columns]  # of all three rows nothing should be left
            square += float(rows.square().sum(dtype=torch.float64))
        return math.sqrt(square)

    def _head(
        self, forward: Forward, hidden: Float[Tensor, "sequences length width"], number: int
    ) -> Iterator[RuleSignal]:
        """One sequence's signals of the head where its weight was used without a call of it."""
        heads = [rule for rule in self._rules if rule.head]
        labels = forward.named["labels"][number, 1:]  # labels[t] is scored by hidden[number, t]
        # Where there is no label, log π is a constant zero.
        places = (labels >= 0).nonzero()[:, 0]
        pull = forward.pulls["log_probs"][number].to(hidden.device)[places]
        with recorded_calls(heads, set()) as calls, torch.enable_grad():
            scores = ResponseLogits(self.policy.model).head(hidden[number, places])
            scores = (scores / self._temperature).log_softmax(-1)
            total = (pull * scores.gather(-1, labels[places, None])[:, 0]).sum()
        for call in calls:
            (delta,) = torch.autograd.grad(total, [call.output], retain_graph=True)
            value, signal = typed(call, delta, self.policy.dtype)
            where = torch.full((len(signal),), number, device=signal.device)
            yield call.rule, value, signal, where
