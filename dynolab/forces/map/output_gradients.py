"""Gradients of each response token's score at the output of every module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dynolab.data.batches import TokenBatch
from dynolab.forces.function.logit_function import Weights
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import Rule
from dynolab.forces.map.weighted import WeightedResponse, weighted_batch
from dynolab.objectives.base import target_force


@dataclass(frozen=True)
class Tail:
    """Where a transformer stops mixing positions: after its last attention.

    `readers` are the modules that read the output of `norm` into the last attention, `merge` the
    first module after it. Signals of later modules, and of the queries, are nonzero only at the
    token's own position, so one backward pass gives those of all tokens at once.
    """

    norm: Rule
    readers: tuple[Rule, ...]
    merge: Rule


@dataclass(frozen=True)
class Signal:
    """One call of a module: its input, and `δ_m = ∂s_m / ∂output` for every token m's score s_m.

    `delta` is tokens × positions × d_out; for a local module it is tokens × d_out, only at the
    position that predicts m. `input` has the same positions.
    """

    rule: Rule
    input: Tensor
    delta: Tensor

    def summed(self, factor: Tensor | None = None) -> Float[Tensor, "tokens d_out"]:
        """`Σ_s δ_{m,s} ⊙ factor_s`, the factor 1 by default."""
        product = self.delta if factor is None else self.delta * factor
        return product if self.rule.local else product.sum(1)


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a module; `leaf` stands in for its input, where one does."""

    rule: Rule
    input: Tensor
    output: Tensor
    leaf: Tensor | None


def token_signals(
    policy: PolicyFunction,
    at: Weights,
    rules: Sequence[Rule],
    tail: Tail | None,
    response: WeightedResponse,
) -> list[Signal]:
    """Signals of all tokens of one response at the modules that have a rule.

    One forward pass; one backward of Σ s as far as signals stay at their token's own position,
    which keeps the tokens apart; from there one backward batched over tokens.

    **Arguments:** `at`: all weights, already cast to the policy.
    """
    batch = weighted_batch([response], policy)
    cut = {id(rule.module) for rule in tail.readers} if tail else set()
    with recorded_calls(rules, cut) as calls, torch.enable_grad():
        scores = _scores(policy, at, response, batch)
    if tail is None:
        return _from_the_head(scores, calls, batch.position)
    return _from_the_last_attention(scores, calls, tail, batch.position)


def _scores(
    policy: PolicyFunction, at: Weights, response: WeightedResponse, batch: TokenBatch
) -> Float[Tensor, " tokens"]:
    """`Σ_j w_j (e_{t_j} − π_T)·z/T` of every token, whose gradient is that of s.

    The factor is held constant: minus the force of −s, which keeps its digits near probability 1.
    """
    logits = policy.logits(at, batch)
    pull = -target_force(response.weights, logits.detach(), response.targets, response.temperature)
    return (pull * logits).sum(-1)


def _from_the_head(scores: Tensor, calls: Sequence[Call], position: Tensor) -> list[Signal]:
    """Starts at the logits: row m belongs to token m alone, whatever the head computes."""
    heads = [call for call in calls if call.rule.head]
    body = _on_sequences(calls, position)
    one_by_one = torch.eye(len(scores), dtype=scores.dtype, device=scores.device)
    start, at_heads = scores, []
    if len(heads) == 1:
        (head,) = heads
        delta, cotangent = torch.autograd.grad(
            scores.sum(), [head.output, head.input], retain_graph=True
        )
        start, one_by_one = head.input, one_by_one[:, None, :, None] * cotangent
        at_heads = [Signal(head.rule, head.input[0].detach(), delta[0])]
    gradients = _batched([start], [call.output for call in body], [one_by_one])
    signals = [_whole(call, gradient) for call, gradient in zip(body, gradients, strict=True)]
    return [*signals, *at_heads]


def _from_the_last_attention(
    scores: Tensor, calls: Sequence[Call], tail: Tail, position: Tensor
) -> list[Signal]:
    """One backward after the last attention; through it and below, token by token.

    The attention's readers have leaves as inputs, so only the residual stream's gradient reaches
    the norm's input, and it stays at its own position.
    """
    norm, merge = (_call_of(rule, calls) for rule in (tail.norm, tail.merge))
    readers = [_call_of(rule, calls) for rule in tail.readers]
    local = [call for call in calls if call.rule.local]
    *own, mixed, residual = torch.autograd.grad(
        scores.sum(),
        [*(call.output for call in local), merge.input, norm.input],
        retain_graph=True,
        materialize_grads=True,
    )

    crossing = [call for call in readers if not call.rule.local]
    leaves = [call.leaf for call in readers if call.leaf is not None]
    through = _batched(
        [merge.input],
        [*(call.output for call in crossing), *leaves],
        [_one_by_one(mixed, position)],
    )
    below = _on_sequences(calls[: calls.index(norm) + 1], position)
    read = sum(through[len(crossing) + 1 :], through[len(crossing)])
    deep = _batched(
        [norm.output, norm.input],
        [call.output for call in below],
        [read, _one_by_one(residual, position)],
    )
    pairs = zip([*crossing, *below], [*through[: len(crossing)], *deep], strict=True)
    return [
        *(_whole(call, gradient) for call, gradient in pairs),
        *(_own(call, gradient, position) for call, gradient in zip(local, own, strict=True)),
    ]


def _on_sequences(calls: Sequence[Call], position: Tensor) -> list[Call]:
    """The calls on whole sequences.

    The head and its adapters are called only on the predicting positions, which are fewer: the
    last token predicts nothing.
    """
    return [
        call
        for call in calls
        if not call.rule.head and call.output.dim() == 3 and call.output.shape[1] > len(position)
    ]


def _call_of(rule: Rule, calls: Sequence[Call]) -> Call:
    return next(call for call in calls if call.rule is rule)


def _one_by_one(cotangent: Tensor, position: Tensor) -> Tensor:
    """Each token m's own cotangent: row `position[m]` of the sum's, zero elsewhere."""
    numbers = torch.arange(len(position), device=position.device)
    alone = cotangent.new_zeros(len(position), *cotangent.shape)
    alone[numbers, 0, position] = cotangent[0, position]
    return alone


def _batched(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor]:
    """Gradients for a batch of cotangents; zero where no path leads to an input."""
    gradients = torch.autograd.grad(
        outputs, inputs, cotangents, is_grads_batched=True, allow_unused=True, retain_graph=True
    )
    tokens = len(cotangents[0])
    return [
        tensor.new_zeros(tokens, *tensor.shape) if gradient is None else gradient
        for tensor, gradient in zip(inputs, gradients, strict=True)
    ]


def _whole(call: Call, signal: Tensor) -> Signal:
    """A signal at all positions but the last, which predicts nothing."""
    end = call.output.shape[1] - 1
    return Signal(call.rule, call.input[0, :end].detach(), signal[:, 0, :end].detach())


def _own(call: Call, signal: Tensor, position: Tensor) -> Signal:
    """A signal at each token's own position: the head sees only those, other modules all."""
    if call.rule.head:
        return Signal(call.rule, call.input[0].detach(), signal[0])
    return Signal(call.rule, call.input[0, position].detach(), signal[0, position])


def find_tail(
    policy: PolicyFunction, at: Weights, rules: Sequence[Rule], sample: WeightedResponse
) -> tuple[list[Rule], Tail | None]:
    """The rules, with local modules marked, and the tail, or None if it is not usable.

    A module is local if no token's signal on the sample leaves the token's own position. The last
    module that is not local belongs to the last attention; the modules that read the same tensor
    are its readers.
    """
    batch = weighted_batch([sample], policy)
    with recorded_calls(rules, set()) as calls, torch.enable_grad():
        scores = _scores(policy, at, sample, batch)
    body = [call for call in _on_sequences(calls, batch.position) if call.rule.kind != "embedding"]
    once = len({id(call.rule) for call in calls}) == len(calls)
    if not once or len(sample.sequence.ids) < 3:
        return list(rules), None
    local = {
        id(signal.rule)
        for signal in _from_the_head(scores, calls, batch.position)
        if not signal.rule.local and _stays_at(signal.delta, batch.position)
    }
    mixing = [call for call in body if id(call.rule) not in local]
    if not mixing:
        return list(rules), None
    read = mixing[-1].input
    readers = [call for call in body if call.input is read]
    norms = [call for call in body if call.output is read and call.rule.kind == "norm"]
    behind = [call for call in body[body.index(mixing[-1]) + 1 :] if call.input is not read]
    if len(norms) != 1 or not behind or not norms[0].input.requires_grad:
        return list(rules), None
    local &= {id(call.rule) for call in [*readers, *behind]}
    marked = {id(r): replace(r, local=r.head or id(r) in local) for r in rules}
    tail = Tail(
        norm=marked[id(norms[0].rule)],
        readers=tuple(marked[id(call.rule)] for call in readers),
        merge=marked[id(behind[0].rule)],
    )
    return [marked[id(rule)] for rule in rules], tail


def _stays_at(signal: Tensor, position: Tensor) -> bool:
    elsewhere = signal.clone()
    elsewhere[torch.arange(len(position)), position] = 0
    return not bool(elsewhere.any())


@contextmanager
def recorded_calls(rules: Sequence[Rule], cut: set[int]) -> Iterator[list[Call]]:
    """Records every call of the rules' modules, with outputs that require a gradient.

    Modules in `cut` (by identity) get a leaf in place of their input.
    """
    calls: list[Call] = []
    leaves: dict[int, tuple[Tensor, Tensor]] = {}

    def stand_in(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        leaf = arguments[0].detach().requires_grad_()
        leaves[id(module)] = arguments[0], leaf
        return (leaf, *arguments[1:])

    def hook(rule: Rule):  # type: ignore[no-untyped-def]
        def record(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            # Weights are constants here, so the graph begins at the embeddings' outputs.
            if not output.requires_grad:
                output.requires_grad_()
            value, leaf = leaves.get(id(module), (arguments[0], None))
            calls.append(Call(rule, value, output, leaf))

        return record

    with ExitStack() as hooks:
        for rule in rules:
            if id(rule.module) in cut:
                hooks.callback(rule.module.register_forward_pre_hook(stand_in).remove)
            hooks.callback(rule.module.register_forward_hook(hook(rule)).remove)
        yield calls
