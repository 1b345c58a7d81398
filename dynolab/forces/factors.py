"""Per-token gradients of log π as factors, by one batched backward pass per group of sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from dynolab.data.batches import collate
from dynolab.data.encode import Encoded
from dynolab.forces.policy import PolicyFunction, Weights
from dynolab.forces.rules import Rule
from dynolab.forces.split import PAD_ID


@dataclass(frozen=True)
class Outer:
    """A matrix: token m's gradient is `Σ_s signal[m,s] input[s]ᵀ`, transposed where it says so."""

    input: Float[Tensor, "positions d_in"]
    signal: Float[Tensor, "tokens positions d_out"]
    transposed: bool


@dataclass(frozen=True)
class Rows:
    """An embedding: token m's gradient is `rows[m, i]` at table row `ids[i]`, else zero."""

    ids: list[int]
    rows: Float[Tensor, "tokens present d"]


@dataclass(frozen=True)
class Point:
    """An output head: token m's gradient is rank one, `signal[m] input[m]ᵀ`.

    Its signal e_{y_m} − π_m lives at the position that predicts m and nowhere else.
    """

    input: Float[Tensor, "tokens d"]
    signal: Float[Tensor, "tokens vocabulary"]


@dataclass(frozen=True)
class Factors:
    """∇_θ log π of each response token of one sequence, by parameter name.

    A name may stand under `rows` and `point` at once (tied embeddings); its gradient is the sum.
    """

    tokens: int
    positions: int
    outer: dict[str, Outer] = field(default_factory=dict)
    rows: dict[str, Rows] = field(default_factory=dict)
    point: dict[str, Point] = field(default_factory=dict)
    dense: dict[str, Float[Tensor, "tokens size"]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Call:
    rule: Rule
    input: Tensor
    output: Tensor


def token_factors(
    policy: PolicyFunction, at: Weights, rules: Sequence[Rule], generic: set[str],
    sequence: Encoded,
) -> Factors:  # fmt: skip
    """Factors of ∇ log π_m for every response token of a sequence.

    One forward pass; one backward from Σ log π to the head's input, whose rows are each one
    token's own; then one backward, batched over the tokens, down to every module's output.

    **Arguments:**

    - `at`: all weights, already cast to the policy.
    - `generic`: parameters whose per-token gradients are taken whole, by plain autograd.
    """
    batch = collate([sequence], PAD_ID).to(policy.device)
    with _recorded(rules) as calls, torch.enable_grad():
        logps = policy.logps(at, batch)
    heads = [call for call in calls if call.rule.head]
    body = [call for call in calls if not call.rule.head and call.output.dim() == 3]
    start, cotangent, *at_head = _start(logps, heads)
    one_by_one = torch.eye(len(logps), dtype=logps.dtype, device=logps.device)
    if heads:
        one_by_one = one_by_one[:, :, None] * cotangent
    signals = torch.autograd.grad(
        start, [call.output for call in body], one_by_one, is_grads_batched=True, allow_unused=True
    )
    factors = Factors(sequence.response_length, len(sequence.ids) - 1)
    with policy.differentiable():
        for call, signal in zip(body, signals, strict=True):
            if signal is None:
                signal = call.output.new_zeros(len(logps), *call.output.shape)
            _add(factors, call, signal.detach(), generic)
    for call, signal in zip(heads, at_head, strict=True):
        _add_point(factors, call, signal, generic)
    if generic:
        factors.dense.update(_whole(policy, at, generic, sequence))
    return factors


@contextmanager
def _recorded(rules: Sequence[Rule]) -> Iterator[list[_Call]]:
    """Every call of the rules' modules, with outputs that autograd can be asked about."""
    calls: list[_Call] = []

    def hook(rule: Rule):  # type: ignore[no-untyped-def]
        def record(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            # Weights are constants here, so the graph begins at the embeddings' outputs.
            if not output.requires_grad:
                output.requires_grad_()
            calls.append(_Call(rule, arguments[0], output))

        return record

    handles = [rule.module.register_forward_hook(hook(rule)) for rule in rules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _start(logps: Tensor, heads: Sequence[_Call]) -> list[Tensor]:
    """Where the batched backward starts, its cotangent, and the signal at every head's output.

    Logits row m is token m's alone, so one backward of Σ log π gives every token's own signal
    there, of any head (with bias, scale or soft cap), and its cotangent on the head's input.
    """
    if len(heads) != 1:
        return [logps, torch.ones_like(logps)]
    (head,) = heads
    signal, cotangent = torch.autograd.grad(
        logps.sum(), [head.output, head.input], retain_graph=True
    )
    return [head.input, cotangent, signal]


def _add(
    factors: Factors, call: _Call, signal: Float[Tensor, "tokens 1 length d_out"],
    generic: set[str],
) -> None:  # fmt: skip
    """Enters one call of a module; further calls of it add up."""
    rule, delta = call.rule, signal[:, 0, : factors.positions]
    if rule.bias is not None and rule.bias not in generic:
        _add_dense(factors, rule.bias, delta.sum(1))
    if rule.weight is None or rule.weight in generic:
        return
    value = call.input[0, : factors.positions].detach()
    if rule.kind == "norm":
        _add_dense(factors, rule.weight, (delta * _normed(rule, value)).sum(1))
    elif rule.kind == "embedding":
        factors.rows[rule.weight] = _table_rows(rule.module, value, delta)
    else:
        old = factors.outer.get(rule.weight)
        if old is not None:
            value, delta = torch.cat([old.input, value]), torch.cat([old.signal, delta], dim=1)
        factors.outer[rule.weight] = Outer(value, delta, rule.transposed)


def _add_point(factors: Factors, call: _Call, signal: Tensor, generic: set[str]) -> None:
    rule = call.rule
    if rule.bias is not None and rule.bias not in generic:
        _add_dense(factors, rule.bias, signal)
    if rule.weight is not None and rule.weight not in generic:
        factors.point[rule.weight] = Point(call.input.detach(), signal)


def _add_dense(factors: Factors, name: str, gradient: Tensor) -> None:
    old = factors.dense.get(name)
    factors.dense[name] = gradient if old is None else old + gradient


def _table_rows(module: nn.Module, ids: Int[Tensor, positions], delta: Tensor) -> Rows:
    """Σ of the signals over the positions of each token present; a padding row learns nothing."""
    present, where = ids.unique(return_inverse=True)
    rows = delta.new_zeros(len(delta), len(present), delta.shape[-1]).index_add_(1, where, delta)
    rows[:, present == module.padding_idx] = 0
    return Rows(present.tolist(), rows)


@torch.no_grad()
def _normed(rule: Rule, value: Tensor) -> Tensor:
    """The norm's output before scale and bias."""
    module = rule.module
    weight = module.weight
    assert isinstance(weight, Tensor)
    plain = {"weight": torch.ones_like(weight, dtype=value.dtype)}
    if getattr(module, "bias", None) is not None:
        plain["bias"] = torch.zeros_like(plain["weight"])
    return functional_call(module, plain, (value,))


def _whole(
    policy: PolicyFunction, at: Weights, names: set[str], sequence: Encoded
) -> dict[str, Float[Tensor, "tokens size"]]:
    """Per-token gradients of some parameters, one backward pass a token."""
    leaves = {name: at[name].detach().requires_grad_() for name in sorted(names)}
    with torch.enable_grad():
        logps = policy.logps({**at, **leaves}, collate([sequence], PAD_ID).to(policy.device))
    by_token = [_gradients(logp, leaves) for logp in logps.unbind()]
    return {name: torch.stack([g[name].flatten() for g in by_token]) for name in leaves}


def _gradients(value: Tensor, leaves: Weights) -> dict[str, Tensor]:
    found = torch.autograd.grad(
        value, list(leaves.values()), retain_graph=True, materialize_grads=True
    )
    return dict(zip(leaves, found, strict=True))


def without_rule(
    policy: PolicyFunction, at: Weights, rules: Sequence[Rule], wanted: set[str],
    sequence: Encoded,
) -> set[str]:  # fmt: skip
    """Wanted parameters whose factors do not give autograd's gradient of `Σ_m w_m log π_m`.

    They act through a module of no known kind, outside any module, or otherwise than their
    module's kind says; their gradients are then taken whole. The weights w are random, so that a
    signal at a wrong token or position shows.
    """
    w = torch.randn(sequence.response_length, generator=torch.Generator().manual_seed(0))
    w = w.to(policy.device, policy.dtype)
    leaves = {name: at[name].detach().requires_grad_() for name in sorted(wanted)}
    with torch.enable_grad():
        logps = policy.logps({**at, **leaves}, collate([sequence], PAD_ID).to(policy.device))
    truth = _gradients(w @ logps, leaves)
    made = _summed(token_factors(policy, at, rules, set(), sequence), w, truth)
    floor = 1e-6 * max(float(g.norm()) for g in truth.values())
    return {
        name for name, g in truth.items()
        if name not in made or float((made[name] - g).norm()) > 1e-3 * float(g.norm()) + floor
    }  # fmt: skip


@torch.no_grad()
def _summed(factors: Factors, w: Tensor, like: Weights) -> dict[str, Tensor]:
    """`Σ_m w_m g_m` by parameter name, from the factors."""
    sums: dict[str, Tensor] = {}
    for name, one in factors.outer.items():
        g = torch.einsum("m,mso,si->oi", w, one.signal, one.input)
        sums[name] = g.T if one.transposed else g
    for name, rows in factors.rows.items():
        sums[name] = torch.zeros_like(like[name])
        sums[name][rows.ids] = torch.einsum("m,mvd->vd", w, rows.rows)
    for name, point in factors.point.items():
        g = (point.signal * w[:, None]).T @ point.input
        sums[name] = sums[name] + g if name in sums else g
    for name, dense in factors.dense.items():
        sums[name] = (w @ dense).view_as(like[name])
    return sums
