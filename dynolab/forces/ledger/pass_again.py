"""A trainer's forward pass made again: the gradient of each of its sequences, by parameter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from dynolab.forces.function.calls import Call
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import Rule
from dynolab.forces.function.weights import Weights, gradients, shape_of
from dynolab.forces.ledger.forwards import Draws, Forward, Outputs, draw_again
from dynolab.forces.ledger.grouped import add_call

RuleSignal = tuple[Rule, Shaped[Tensor, " ..."], Float[Tensor, "_ _"], Int[Tensor, " _"]]
"""A rule, its module's input, its signal at every position, and every position's sequence."""

GRADIENT_BYTES = 2**28
"""Of gradients of sequences by one parameter that are held at once; one sequence's at least."""


@dataclass(frozen=True)
class PassAgain:
    """A pass that was made again: the gradients of its sequences, parameter by parameter.

    `parameters`: those that have lines, by name; `generic`: of them those that have no rule.
    `signals`: a rule, its module's input and signal, and every position's sequence, in the order of
    the sequences.
    """

    policy: PolicyFunction
    parameters: Weights
    rules: Sequence[Rule]
    generic: frozenset[str]
    forward: Forward
    outputs: Sequence[Outputs]
    signals: Sequence[RuleSignal]

    @property
    def sequences(self) -> int:
        """How many there are."""
        return len(self.forward.ids)

    @cached_property
    def groups(self) -> list[list[str]]:
        """The parameters whose gradients are formed together, such as a module's weight and bias.

        Rules that share a tied weight are one group. They are the same on all ranks.
        """
        groups: list[set[str]] = []
        for rule in self.rules:
            # The groups that share a name with the rule become one with it.
            joined, apart = set(rule.names), []
            for group in groups:
                if group & joined:
                    joined |= group
                else:
                    apart.append(group)
            groups = [*apart, joined]
        groups += [{name} for name in self.generic]
        order = {name: place for place, name in enumerate(self.parameters)}
        in_order = [sorted(group, key=order.__getitem__) for group in groups]
        return sorted(in_order, key=lambda group: order[group[0]])

    def gradients(
        self, group: Sequence[str]
    ) -> Iterator[tuple[str, slice, Float[Tensor, "some parameter"]]]:
        """Gradients of some sequences at a time by each parameter of a group.

        `GRADIENT_BYTES` bounds what is held at once.
        """
        sizes = {name: shape_of(self.parameters[name]).numel() for name in group}
        dtype, device = self.policy.dtype, self.policy.device
        at_once = max(1, GRADIENT_BYTES // (sum(sizes.values()) * dtype.itemsize))
        for start in range(0, self.sequences, at_once):
            some = slice(start, min(start + at_once, self.sequences))
            count = some.stop - some.start
            rows = {
                name: torch.zeros(count, size, dtype=dtype, device=device)
                for name, size in sizes.items()
            }
            if group[0] in self.generic:
                self._by_autograd(group[0], some, rows[group[0]])
            else:
                self._by_rule(some, rows)
            for name, gradients_of_some in rows.items():
                yield name, some, gradients_of_some

    def _by_rule(self, some: slice, rows: dict[str, Float[Tensor, "some _"]]) -> None:
        for rule, value, signal, where in self.signals:  # `where`: every position's sequence
            if rows.keys().isdisjoint(rule.names):
                continue
            inside = (where >= some.start) & (where < some.stop)
            positions = value.flatten() if rule.kind == "embedding" else value.flatten(0, -2)
            add_call(rule, positions[inside], signal[inside], where[inside] - some.start, rows)

    def _by_autograd(self, name: str, some: slice, rows: Float[Tensor, "some parameter"]) -> None:
        """A backward pass a sequence."""
        leaf = {name: self.parameters[name]}
        for number in range(some.start, some.stop):
            pulls = [pull.to(rows.device) for pull in self.forward.alone(number)]
            gradient = gradients(self.outputs, leaf, pulls)[name]
            rows[number - some.start] = gradient.flatten().to(rows)


def typed(
    call: Call, signal: Float[Tensor, "*shape d_out"], dtype: torch.dtype
) -> tuple[Shaped[Tensor, " ..."], Float[Tensor, "positions d_out"]]:
    """A call's input and its signal, positions × d_out, in a dtype; an embedding's input is ids."""
    value = call.input.detach()
    if call.rule.kind != "embedding":
        value = value.to(dtype)
    return value, signal.to(dtype).flatten(0, -2)


@contextmanager
def replayed(model: nn.Module, draws: Draws, device: torch.device) -> Iterator[None]:
    """A pass from an earlier random state that leaves the state, buffers and gradients as they are.

    Gradient checkpointing, which changes no number, is off.
    """
    checkpointing = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        draw_again(draws, device)
        for module in checkpointing:
            module.gradient_checkpointing = False  # type: ignore[assignment]
        try:
            yield
        finally:
            for module in checkpointing:
                module.gradient_checkpointing = True  # type: ignore[assignment]
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
