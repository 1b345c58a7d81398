"""Gradients of many sums at once: one forward and one backward pass for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.data.encode import Encoded
from dynolab.forces.function.logit_function import Weights
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import Rule, find_rules
from dynolab.forces.function.views import View
from dynolab.forces.ledger.flat import unflatten
from dynolab.forces.map.factors import differing, normed
from dynolab.forces.map.output_gradients import Call, recorded_calls

Values = Callable[[Float[Tensor, "tokens vocabulary"]], Float[Tensor, " tokens"]]
"""A value of every response token, computed from its logits."""


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
        batch, _ = policy.batch(list(sample))
        groups = torch.arange(len(sample))

        def values(logits: Tensor) -> Tensor:
            return View.realised(batch).logps(logits).squeeze(-1)

        made, truth = (
            route(at, batch, values, groups, len(sample))[0] for route in (by_rule, by_autograd)
        )
        generic: set[str] = set()
        for row, true_row in zip(made, truth, strict=True):
            generic |= differing(unflatten(row, at), unflatten(true_row, at))
        kept = tuple(rule for rule in rules if not generic & set(rule.names))
        covered = {name for rule in kept for name in rule.names}
        return cls(policy, names, kept, frozenset(set(names) - covered))

    def __call__(
        self,
        at: Weights,
        batch: TokenBatch,
        values: Values,
        group: Int[Tensor, " sequences"],
        groups: int,
    ) -> tuple[Float[Tensor, "groups parameters"], Float[Tensor, " tokens"]]:
        """The gradients of every group's sum, and the values.

        **Arguments:** `group`: of each sequence; sequences of a group stand side by side, groups
        in rising order.
        """
        policy = self.policy
        cast = policy.cast(at)
        leaves = {name: cast[name].requires_grad_() for name in self.names if name in self.generic}
        with recorded_calls(self.rules, set()) as calls, torch.enable_grad():
            each = values(policy.logits({**cast, **leaves}, batch))
        outputs = [call.output for call in calls]
        deltas: Sequence[Tensor] = ()
        if outputs:
            deltas = torch.autograd.grad(
                each.sum(), outputs, retain_graph=bool(leaves), materialize_grads=True
            )
        sizes = [cast[name].numel() for name in self.names]
        rows = each.new_zeros(groups, sum(sizes))
        parts = dict(zip(self.names, rows.split(sizes, dim=1), strict=True))
        with torch.no_grad(), policy.differentiable():
            for call, delta in zip(calls, deltas, strict=True):
                where = _groups_of(call, batch, group)
                if where is not None:
                    _add(call, delta, where, parts)
        for number in range(groups if leaves else 0):
            gradients = torch.autograd.grad(
                each[(group == number).to(each.device)[batch.sequence]].sum(),
                list(leaves.values()),
                retain_graph=True,
                materialize_grads=True,
            )
            for name, gradient in zip(leaves, gradients, strict=True):
                parts[name][number] = gradient.flatten()
        return rows, each.detach()


def _groups_of(
    call: Call, batch: TokenBatch, group: Int[Tensor, " sequences"]
) -> Int[Tensor, " positions"] | None:
    """The group of each of a call's positions; None for calls on something else.

    Most modules are called on whole sequences, the head and what is in it on the positions that
    predict a response token.
    """
    positions = call.output.shape[:-1]
    group = group.to(call.output.device)
    if positions == batch.input_ids.shape:
        return group.repeat_interleave(positions[1])
    if positions.numel() == len(batch.sequence):
        return group[batch.sequence]
    return None


def _add(
    call: Call, delta: Tensor, where: Int[Tensor, " positions"], parts: dict[str, Tensor]
) -> None:
    """Adds one call's gradients to the rows of its groups."""
    rule = call.rule
    signal = delta.flatten(0, -2)
    if rule.bias is not None:
        parts[rule.bias].index_add_(0, where, signal)
    if rule.weight is None:
        return
    out = parts[rule.weight]
    if rule.kind == "norm":
        out.index_add_(0, where, signal * normed(rule, call.input).flatten(0, -2))
    elif rule.kind == "embedding":
        _add_table(call, signal, where, out)
    else:
        value = call.input.flatten(0, -2)
        left, right = (value, signal) if rule.transposed else (signal, value)
        edges = torch.searchsorted(where, torch.arange(len(out) + 1, device=where.device))
        for number, (start, stop) in enumerate(pairwise(edges.tolist())):
            if stop > start:
                own = out[number].view(left.shape[1], right.shape[1])
                own.addmm_(left[start:stop].T, right[start:stop])


def _add_table(call: Call, signal: Tensor, where: Int[Tensor, " positions"], out: Tensor) -> None:
    """Rows of an embedding; a padding row learns nothing."""
    ids, table = call.input.flatten(), call.rule.module
    size = signal.shape[1]
    if table.padding_idx is not None:
        signal = signal * (ids != table.padding_idx)[:, None]
    entries = out.shape[1] // size
    flat = torch.zeros(len(out) * entries, size, dtype=out.dtype, device=out.device)
    flat.index_add_(0, where * entries + ids, signal)
    out += flat.view(len(out), -1)
