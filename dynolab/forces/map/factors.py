"""Per-token gradients of scores as factors: a module's input times its output's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import Rule
from dynolab.forces.function.weights import NamedTensors, Weights, call_alone, gradients, shape_of
from dynolab.forces.map.output_gradients import Signal, Tail, token_signals
from dynolab.forces.map.weighted import WeightedResponse


@dataclass(frozen=True)
class Outer:
    """A matrix: token m's gradient is `Σ_s signal[m,s] input[s]ᵀ`, transposed if `transposed`."""

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
    """A matrix after the last attention, such as the output head: token m's gradient is rank one.

    It is `signal[m] input[m]ᵀ`, at the position that predicts m, transposed if `transposed`. The
    head's signal is −G_m (for log π itself e_{y_m} − π_m), carried back through all that the model
    applies to its head's output.
    """

    input: Float[Tensor, "tokens d_in"]
    signal: Float[Tensor, "tokens d_out"]
    transposed: bool


@dataclass(frozen=True)
class Factors:
    """∇_θ s of each token of one response (`WeightedResponse`), by parameter name.

    A name may appear in both `rows` and `point` (tied embeddings); its gradient is the sum.
    """

    tokens: int
    positions: int
    outer: dict[str, Outer] = field(default_factory=dict)
    rows: dict[str, Rows] = field(default_factory=dict)
    point: dict[str, Point] = field(default_factory=dict)
    dense: dict[str, Float[Tensor, "tokens size"]] = field(default_factory=dict)


def token_factors(
    policy: PolicyFunction,
    at: Weights,
    rules: Sequence[Rule],
    tail: Tail | None,
    generic: set[str],
    responses: Sequence[WeightedResponse],
) -> list[Factors]:
    """Factors of ∇ s_m for every token of each response.

    **Arguments:**

    - `at`: all weights, already cast to the policy.
    - `tail`: where positions are no longer mixed (`find_tail`).
    - `generic`: parameters whose per-token gradients are computed in full by plain autograd.
    - `responses`: as `token_signals` takes them.
    """
    every = []
    by_response = token_signals(policy, at, rules, tail, responses)
    for response, signals in zip(responses, by_response, strict=True):
        sequence = response.sequence
        factors = Factors(sequence.response_length, len(sequence.ids) - 1)
        with policy.differentiable():
            for signal in signals:
                _add(factors, signal, generic)
        if generic:
            factors.dense.update(_by_autograd(policy, at, generic, response))
        every.append(factors)
    return every


def _add(factors: Factors, signal: Signal, generic: set[str]) -> None:
    """Adds one call of a module; repeated calls add up."""
    rule, value = signal.rule, signal.input
    weight = None if rule.weight in generic else rule.weight
    if rule.bias is not None and rule.bias not in generic:
        _add_dense(factors, rule.bias, signal.summed())
    if weight is None:
        return
    if rule.kind == "norm":
        _add_dense(factors, weight, signal.summed(normed(rule, value)))
    elif rule.local:
        factors.point[weight] = Point(value, signal.delta, rule.transposed)
    elif rule.kind == "embedding":
        factors.rows[weight] = _table_rows(rule.module, value, rule.looked_up(signal.delta))
    else:
        delta, old = signal.delta, factors.outer.get(weight)
        if old is not None:
            value, delta = torch.cat([old.input, value]), torch.cat([old.signal, delta], dim=1)
        factors.outer[weight] = Outer(value, delta, rule.transposed)


def _add_dense(factors: Factors, name: str, gradient: Float[Tensor, "tokens size"]) -> None:
    old = factors.dense.get(name)
    factors.dense[name] = gradient if old is None else old + gradient


def _table_rows(
    module: nn.Module, ids: Int[Tensor, " positions"], delta: Float[Tensor, "tokens positions d"]
) -> Rows:
    """Σ of the signals over the positions of each token present; a padding row gets none."""
    present, where = ids.unique(return_inverse=True)
    rows = delta.new_zeros(len(delta), len(present), delta.shape[-1]).index_add_(1, where, delta)
    rows[:, present == module.padding_idx] = 0
    return Rows(present.tolist(), rows)


@torch.no_grad()
def normed(rule: Rule, value: Float[Tensor, "*positions d"]) -> Float[Tensor, "*positions d"]:
    """The norm's output by its scale: its own before scaling, also where it scales by 1 + w."""
    module: Any = rule.module
    still = value.new_zeros(shape_of(module.weight))  # its own may be split over ranks
    bias = {"bias": still} if getattr(module, "bias", None) is not None else {}
    with_weight, without = (
        call_alone(module, {"weight": weight, **bias}, value)
        for weight in (torch.ones_like(still), still)
    )
    return with_weight - without


def _by_autograd(
    policy: PolicyFunction, at: Weights, names: set[str], response: WeightedResponse
) -> dict[str, Float[Tensor, "tokens size"]]:
    """Per-token gradients of some parameters, one backward pass a token."""
    leaves = {name: at[name].detach().requires_grad_() for name in sorted(names)}
    with torch.enable_grad():
        scores = response.scores(policy, {**at, **leaves})
    by_token = [gradients(score, leaves) for score in scores.unbind()]
    return {name: torch.stack([g[name].flatten() for g in by_token]) for name in leaves}


def without_rule(
    policy: PolicyFunction,
    at: Weights,
    rules: Sequence[Rule],
    tail: Tail | None,
    moving: set[str],
    sample: WeightedResponse,
) -> set[str]:
    """Wanted parameters whose factors do not give autograd's gradient of `Σ_m w_m s_m`.

    They belong to a module of unknown kind or to none, or do not act as their module's kind does;
    their gradients are then computed in full. The weights w are random, so that a signal at a
    wrong token or position shows.
    """
    w = torch.randn(len(sample.weights), generator=torch.Generator().manual_seed(0))
    w = w.to(policy.device, policy.dtype)
    leaves = {name: at[name].detach().requires_grad_() for name in sorted(moving)}
    with torch.enable_grad():
        scores = sample.scores(policy, {**at, **leaves})
    truth = gradients(w @ scores, leaves)
    (factors,) = token_factors(policy, at, rules, tail, set(), [sample])
    computed = _summed(factors, w, truth)
    return differing(computed, truth)


def differing(computed: Weights, truth: Weights) -> set[str]:
    """Names of gradients that are missing or differ from autograd's."""
    floor = 1e-6 * max(float(g.norm()) for g in truth.values())
    return {
        name
        for name, g in truth.items()
        if name not in computed
        or float((computed[name].to(g.device) - g).norm()) > 1e-3 * float(g.norm()) + floor
    }


@torch.no_grad()
def _summed(factors: Factors, w: Float[Tensor, " tokens"], like: Weights) -> NamedTensors:
    """`Σ_m w_m g_m` by parameter name, from the factors."""
    sums: NamedTensors = {}
    for name, outer in factors.outer.items():
        g = torch.einsum("m,mso,si->oi", w, outer.signal, outer.input)
        sums[name] = g.T if outer.transposed else g
    for name, rows in factors.rows.items():
        sums[name] = torch.zeros_like(like[name], device=w.device)
        sums[name][rows.ids] = torch.einsum("m,mvd->vd", w, rows.rows)
    for name, point in factors.point.items():
        g = (point.signal * w[:, None]).T @ point.input
        g = g.T if point.transposed else g
        sums[name] = sums[name] + g if name in sums else g
    for name, dense in factors.dense.items():
        sums[name] = (w @ dense).view_as(like[name])
    return sums
