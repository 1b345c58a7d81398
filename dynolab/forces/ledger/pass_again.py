"""A trainer's forward pass made again: the gradient of each of its sequences, by parameter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from dynolab.forces.function.calls import Call
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import Rule
from dynolab.forces.function.weights import SLICE, Weights, gradients, shape_of
from dynolab.forces.ledger.forwards import Draws, Forward, Outputs, draw_again
from dynolab.forces.ledger.grouped import WHOLE, add_call
from dynolab.forces.step.optimizers import ON_GPU

RuleSignal = tuple[Rule, Shaped[Tensor, " ..."], Float[Tensor, "_ _"], Int[Tensor, " _"]]
"""A rule, its module's input, its signal at every position, and every position's sequence."""

GRADIENT_BYTES = 2**28
"""Of gradients of sequences by some rows of a parameter; one sequence's at least."""


class Rows(NamedTuple):
    """Some rows of a parameter, and their columns where it is a flat vector."""

    places: slice
    columns: slice


def rows_of(parameter: Float[Tensor, " ..."], device: torch.device) -> Iterator[Rows]:
    """A parameter's rows, so many at a time that what is computed of them needs little memory."""
    count, *others = shape_of(parameter)
    width = math.prod(others)
    at_once = max(1, (ON_GPU if device.type == "cuda" else SLICE) // width)
    for start in range(0, count, at_once):
        stop = min(start + at_once, count)
        yield Rows(slice(start, stop), slice(start * width, stop * width))


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

    def parts(self) -> Iterator[tuple[str, Rows]]:
        """Names of the parameters that have lines, and their rows; the same on all ranks."""
        ruled = set(chain.from_iterable(rule.names for rule in self.rules))
        for name, parameter in self.parameters.items():
            if name in self.generic:  # a backward pass gives all of it
                yield name, Rows(WHOLE, slice(0, shape_of(parameter).numel()))
            elif name in ruled:
                for rows in rows_of(parameter, self.policy.device):
                    yield name, rows

    def gradients(
        self, name: str, rows: Rows
    ) -> Iterator[tuple[slice, Float[Tensor, "some columns"]]]:
        """Gradients of some sequences at a time by some rows of a parameter.

        `GRADIENT_BYTES` bounds what is held at once.
        """
        size = rows.columns.stop - rows.columns.start
        dtype, device = self.policy.dtype, self.policy.device
        at_once = max(1, GRADIENT_BYTES // (size * dtype.itemsize))
        for start in range(0, self.sequences, at_once):
            some = slice(start, min(start + at_once, self.sequences))
            out = torch.zeros(some.stop - some.start, size, dtype=dtype, device=device)
            if name in self.generic:
                self._by_autograd(name, some, out)
            else:
                self._by_rule(name, rows.places, some, out)
            yield some, out

    def _by_rule(
        self, name: str, places: slice, some: slice, out: Float[Tensor, "some columns"]
    ) -> None:
        for rule, value, signal, where in self.signals:  # `where`: every position's sequence
            if name not in rule.names:
                continue
            value = value.flatten() if rule.kind == "embedding" else value.flatten(0, -2)
            # The positions of a sequence stand side by side, sequences in rising order.
            ends = where.new_tensor([some.start, some.stop])
            inside = slice(*torch.searchsorted(where, ends).tolist())
            here = where[inside] - some.start
            add_call(rule, value[inside], signal[inside], here, {name: out}, places)

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
