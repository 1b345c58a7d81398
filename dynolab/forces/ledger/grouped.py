"""Gradients of many sums at once: one forward and one backward pass for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.data.encode import Encoded
from dynolab.forces.function.calls import Call, recorded_calls
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import Rule, find_rules
from dynolab.forces.function.views import View
from dynolab.forces.function.weights import Weights, gradients, unflatten
from dynolab.forces.map.factors import differing, normed

Values = Callable[[Float[Tensor, "tokens vocabulary"]], Float[Tensor, " tokens"]]
"""A value of every response token, computed from its logits."""

WHOLE = slice(None)


@dataclass(frozen=True)
class GroupedGradients:
    """`∇_θ Σ values` over the sequences of each group of a batch, one flat row a group.

    A linear module's gradient is `Σ_s δ_s a_sᵀ` over positions s, with its input a and
    `δ = ∂ Σ values/∂output` (`Rule`); a group's is the sum over the positions of its sequences.
    One backward pass of the sum of all values gives δ, as sequences do not mix. Parameters in
    `generic` act in no such way; theirs are taken by autograd, group by group.
    """

    policy: PolicyFunction
    names: tuple[str, ...]
    rules: tuple[Rule, ...]
    generic: frozenset[str]

    @classmethod
    def build(
        cls, policy: PolicyFunction, at: Weights, sample: Sequence[Encoded]
    ) -> GroupedGradients:
        """Finds the parameters' rules, and tries them against autograd on two responses.

        **Arguments:** `at`: the weights that gradients are taken of, in the order of their rows.
        """
        names = tuple(at)
        rules = tuple(rule for rule in find_rules(policy, set(names)) if rule.names)
        by_rule = cls(policy, names, rules, frozenset())
        by_autograd = cls(policy, names, (), frozenset(names))
        batch = policy.batch(list(sample))
        groups = torch.arange(len(sample))

        def values(logits: Float[Tensor, "tokens vocabulary"]) -> Float[Tensor, " tokens"]:
            return View.realised(batch).logps(logits).squeeze(-1)

        rows_by_rule, truth = by_rule.rows(at, len(sample)), by_autograd.rows(at, len(sample))
        by_rule.add(at, batch, values, groups, into=rows_by_rule)
        by_autograd.add(at, batch, values, groups, into=truth)
        generic: set[str] = set()
        for row, true_row in zip(rows_by_rule, truth, strict=True):
            generic |= differing(unflatten(row, at), unflatten(true_row, at))
        # A rule has weight and bias: it goes where one of them is wrong.
        tried = tuple(rule for rule in rules if not generic & set(rule.names))
        covered = set(chain.from_iterable(rule.names for rule in tried))
        return cls(policy, names, tried, frozenset(set(names) - covered))

    def rows(
        self, at: Weights, groups: int, device: torch.device | None = None
    ) -> Float[Tensor, "groups parameters"]:
        """Zeros that gradients can be added to, by default at the policy's home."""
        policy = self.policy
        size = sum(self._sizes(at))
        return torch.zeros(groups, size, dtype=policy.dtype, device=device or policy.home)

    def add(
        self,
        at: Weights,
        batch: TokenBatch,
        values: Values,
        group: Int[Tensor, " sequences"],
        *,
        into: Float[Tensor, "groups parameters"],
    ) -> Float[Tensor, " tokens"]:
        """Adds the gradients of every group's sum to its row; returns the values.

        **Arguments:** `group`: of each sequence; sequences of a group stand side by side, groups
        in rising order.
        """
        named = dict(zip(self.names, into.split(self._sizes(at), dim=1), strict=True))
        on_host = into.device != self.policy.device

        def add(
            rule: Rule,
            value: Shaped[Tensor, " ..."],
            delta: Float[Tensor, "positions d_out"],
            where: Int[Tensor, " positions"],
        ) -> None:
            if not on_host:
                add_call(rule, value, delta, where, named)
                return
            # The sums are made where the signals are, and only they go to the host.
            out = {name: torch.zeros_like(named[name], device=where.device) for name in rule.names}
            add_call(rule, value, delta, where, out)
            for name, row in out.items():
                named[name] += row.cpu()

        def add_generic(name: str, number: int, gradient: Float[Tensor, " size"]) -> None:
            named[name][number] += gradient.to(into.device)

        return self._backward(at, batch, values, group, len(into), add, add_generic)

    def _sizes(self, at: Weights) -> list[int]:
        return [at[name].numel() for name in self.names]

    def _backward(
        self,
        at: Weights,
        batch: TokenBatch,
        values: Values,
        group: Int[Tensor, " sequences"],
        groups: int,
        add: Callable[
            [
                Rule,
                Shaped[Tensor, " ..."],
                Float[Tensor, "positions d_out"],
                Int[Tensor, " positions"],
            ],
            None,
        ],
        add_generic: Callable[[str, int, Float[Tensor, " size"]], None],
    ) -> Float[Tensor, " tokens"]:
        """One forward, and one backward of the sum of all values; returns the values.

        **Arguments:** `add`: gets every call of a rule's module, its signal, and the group of each
        position; `add_generic`: the flat gradients of the generic parameters, group by group.
        """
        policy = self.policy
        cast = policy.cast(at)
        leaves = {name: cast[name].requires_grad_() for name in self.names if name in self.generic}
        groups_here = group.to(policy.device)
        # What the backward pass goes down to, so that it reaches every module with a hook: generic
        # parameters, and outputs at which a graph begins, as nothing before them has a gradient.
        begins = list(leaves.values())

        @torch.no_grad()
        def give(
            rule: Rule, value: Shaped[Tensor, " ..."], delta: Float[Tensor, "*positions d_out"]
        ) -> None:
            where = groups_of(delta.shape[:-1], batch.input_ids.shape, groups_here)
            # The head and what is in it are called on positions that predict a response token.
            if where is None and delta.shape[:-1].numel() == len(batch.sequence):
                where = groups_here[batch.sequence]
            if where is not None:
                # `normed` makes the norm's forward again, in the modes of the policy's passes.
                # Those that were open where the backward was called are not open in its hooks.
                again = policy.differentiable() if rule.kind == "norm" else nullcontext()
                with again:
                    add(rule, value, delta.flatten(0, -2), where)

        def take(call: Call) -> None:
            if call.output.is_leaf:  # nothing before it has a gradient (`recorded_calls`)
                begins.append(call.output)
            hook = partial(give, call.rule, call.input.detach())
            hooks.callback(call.output.register_hook(hook).remove)

        with ExitStack() as hooks:
            with recorded_calls(self.rules, set(), take), torch.enable_grad():
                token_values = values(policy.logits({**cast, **leaves}, batch, forward_mode=False))
            if begins:
                keeps_graph = bool(leaves)  # each group has one more backward pass below
                torch.autograd.grad(
                    token_values.sum(), begins, retain_graph=keeps_graph, allow_unused=True
                )
        if leaves:
            of_token = groups_here[batch.sequence]
            sums = [token_values[of_token == number].sum() for number in range(groups)]
            for number, total in enumerate(sums):
                for name, gradient in gradients(total, leaves).items():
                    add_generic(name, number, gradient.flatten())
        return token_values.detach()


def groups_of(
    positions: torch.Size, rows: torch.Size, group: Int[Tensor, " sequences"]
) -> Int[Tensor, " positions"] | None:
    """The group of each of a call's positions; None for calls on something else.

    **Arguments:** `positions`: the output's shape without features: that of `rows`, sequences ×
    length, with heads or other axes beside them, or flattened.
    """
    # With heads beside them there are `times` positions a token.
    times, rest = divmod(positions.numel(), rows.numel())
    if rest or positions[0] not in (rows[0], rows.numel()):
        return None
    # Sequences come first, in either shape: those of a sequence stand together.
    return group.repeat_interleave(times * rows[1])


def add_call(
    rule: Rule,
    value: Shaped[Tensor, " ..."],
    signal: Float[Tensor, "positions d_out"],
    where: Int[Tensor, " positions"],
    parts: dict[str, Float[Tensor, "groups _"]],
    some: slice = WHOLE,
) -> None:
    """Adds the gradients of one call, whose input is `value`, to the rows of its groups.

    **Arguments:** `parts`: by name, of those of the rule's parameters that are wanted; `some`: of
    the parameters' own rows.
    """
    if rule.bias in parts:
        _add_sums(signal[:, some], where, parts[rule.bias])
    if rule.weight not in parts:
        return
    out = parts[rule.weight]
    if rule.kind == "norm":
        _add_sums((signal * normed(rule, value).flatten(0, -2))[:, some], where, out)
    elif rule.kind == "embedding":
        _add_table(rule, value, rule.looked_up(signal), where, out, some)
    else:
        value = value.flatten(0, -2)
        left, right = (value, signal) if rule.transposed else (signal, value)
        _add_products(left[:, some], right, where, out)


def _add_sums(
    values: Float[Tensor, "positions d"],
    where: Int[Tensor, " positions"],
    out: Float[Tensor, "groups d"],
) -> None:
    """Sums over each group's positions, as a product with its indicator: faster than index_add."""
    groups = torch.arange(len(out), device=where.device)
    out += (groups[:, None] == where).to(values.dtype) @ values


def _add_products(
    left: Float[Tensor, "positions rows"],
    right: Float[Tensor, "positions columns"],
    where: Int[Tensor, " positions"],
    out: Float[Tensor, "groups size"],
) -> None:
    """`Σ_s left_s right_sᵀ` over each group's positions; at once where all have as many.

    A group's positions stand side by side, groups in rising order (`GroupedGradients.add`).
    """
    matrices = out.unflatten(1, (left.shape[1], right.shape[1]))
    counts = torch.bincount(where, minlength=len(out))
    if bool((counts == counts[0]).all()):
        lefts, rights = (matrix.unflatten(0, (len(out), -1)) for matrix in (left, right))
        matrices.baddbmm_(lefts.transpose(1, 2), rights)
        return
    stops = counts.cumsum(0).cpu().tolist()
    for number, (start, stop) in enumerate(zip([0, *stops], stops, strict=False)):
        if stop > start:
            matrices[number].addmm_(left[start:stop].T, right[start:stop])


def _add_table(
    rule: Rule,
    value: Int[Tensor, " ..."],
    signal: Float[Tensor, "positions d"],
    where: Int[Tensor, " positions"],
    out: Float[Tensor, "groups size"],
    some: slice,
) -> None:
    """Some rows of an embedding; a padding row learns nothing."""
    module: Any = rule.module
    ids, padding = value.flatten(), module.padding_idx
    if padding is not None:
        signal = signal * (ids != padding)[:, None]
    if some != WHOLE:
        inside = (ids >= some.start) & (ids < some.stop)
        ids, signal, where = ids[inside] - some.start, signal[inside], where[inside]
    stops = torch.bincount(where, minlength=len(out)).cumsum(0).cpu().tolist()
    tables = out.unflatten(1, (-1, signal.shape[1]))
    for number, (start, stop) in enumerate(zip([0, *stops], stops, strict=False)):
        tables[number].index_add_(0, ids[start:stop], signal[start:stop])
