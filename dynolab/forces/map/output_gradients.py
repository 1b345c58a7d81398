"""Gradients of each response token's score at the output of every module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from dynolab.data.batches import TokenBatch
from dynolab.forces.function.calls import Call, recorded_calls
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import Rule
from dynolab.forces.function.weights import Weights
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
    input: Shaped[Tensor, "positions ..."]
    delta: Float[Tensor, "tokens *positions d_out"]

    def summed(
        self, factor: Float[Tensor, "*positions d_out"] | None = None
    ) -> Float[Tensor, "tokens d_out"]:
        """`Σ_s δ_{m,s} ⊙ factor_s`, the factor 1 by default."""
        product = self.delta if factor is None else self.delta * factor
        return product if self.rule.local else product.sum(1)


@dataclass(frozen=True)
class Places:
    """Where the response tokens of a batch are predicted.

    `row` and `position` are those of every token, `number` counts it within its response. `tokens`
    are the slices of the responses among all tokens, `ends` their positions without the last, which
    predicts nothing.
    """

    row: Int[Tensor, " tokens"]
    position: Int[Tensor, " tokens"]
    number: Int[Tensor, " tokens"]
    shape: torch.Size
    tokens: list[slice]
    ends: list[int]

    @classmethod
    def of(cls, responses: Sequence[WeightedResponse], batch: TokenBatch) -> Places:
        """The places of a batch's responses."""
        lengths = [len(response.weights) for response in responses]
        starts = [0, *accumulate(lengths)]
        numbers = torch.cat([torch.arange(length) for length in lengths])
        return cls(
            row=batch.token_row,
            position=batch.position,
            number=numbers.to(batch.position.device),
            shape=batch.input_ids.shape,
            tokens=[slice(*ends) for ends in pairwise(starts)],
            ends=[len(response.sequence.ids) - 1 for response in responses],
        )

    def one_by_one(
        self, cotangent: Float[Tensor, "rows length d"]
    ) -> Float[Tensor, "most rows length d"]:
        """The cotangents of each response's first token, then of its second, and so on.

        Each is the sum's at the token's own place, and zero elsewhere. Responses do not read each
        other, so that one backward pass takes one token of each.
        """
        most = max(tokens.stop - tokens.start for tokens in self.tokens)
        alone = cotangent.new_zeros(most, *cotangent.shape)
        alone[self.number, self.row, self.position] = cotangent[self.row, self.position]
        return alone


def token_signals(
    policy: PolicyFunction,
    at: Weights,
    rules: Sequence[Rule],
    tail: Tail | None,
    responses: Sequence[WeightedResponse],
) -> list[list[Signal]]:
    """Signals of all tokens of each response at the modules that have a rule.

    One forward pass; one backward of Σ s as far as signals stay at their token's own position,
    which keeps the tokens apart; from there one backward batched over the tokens of a response.

    **Arguments:**

    - `at`: all weights, already cast to the policy.
    - `responses`: of one temperature, with equally many targets at a position.
    """
    batch = weighted_batch(responses, policy)
    places = Places.of(responses, batch)
    cut = {id(rule.module) for rule in tail.readers} if tail else set()
    with recorded_calls(rules, cut) as calls, torch.enable_grad():
        scores = _scores(policy, at, responses, batch)
    if tail is None:
        return _from_the_head(scores, calls, places)
    return _from_the_last_attention(scores, calls, tail, places)


def _scores(
    policy: PolicyFunction, at: Weights, responses: Sequence[WeightedResponse], batch: TokenBatch
) -> Float[Tensor, " tokens"]:
    """`Σ_j w_j (e_{t_j} − π_T)·z/T` of every token, whose gradient is that of s.

    The factor is held constant: minus the force of −s, which keeps its digits near probability 1.
    """
    logits = policy.logits(at, batch)
    weights = torch.cat([response.weights for response in responses])
    targets = torch.cat([response.targets for response in responses])
    pull = -target_force(weights, logits.detach(), targets, batch.temperature)
    return (pull * logits).sum(-1)


def _from_the_head(
    scores: Float[Tensor, " tokens"], calls: Sequence[Call], places: Places
) -> list[list[Signal]]:
    """Starts at the logits: a row belongs to its token alone, whatever the head computes."""
    body = _on_sequences(calls, places)
    # Row m of the cotangents is 1 at the tokens that are m-th in their response.
    start, cotangents = scores, functional.one_hot(places.number).T.to(scores)
    heads, head_deltas = [call for call in calls if call.rule.head], []
    if len(heads) == 1:
        head = heads[0]
        delta, pull = torch.autograd.grad(
            scores.sum(), [head.output, head.input], retain_graph=True
        )
        start, cotangents = head.input, cotangents[:, None, :, None] * pull
        head_deltas.append(delta)
    else:
        heads = []
    deltas = _batched([start], [call.output for call in body], [cotangents]) if body else []
    return _by_response(body, deltas, heads, head_deltas, places)


def _from_the_last_attention(
    scores: Float[Tensor, " tokens"], calls: Sequence[Call], tail: Tail, places: Places
) -> list[list[Signal]]:
    """One backward after the last attention; through it and below, token by token.

    The attention's readers have leaves as inputs, so only the residual stream's gradient reaches
    the norm's input, and it stays at its own position.
    """
    norm, merge = _call_of(tail.norm, calls), _call_of(tail.merge, calls)
    readers = [_call_of(rule, calls) for rule in tail.readers]
    local = [call for call in calls if call.rule.local]
    # Where nothing below the norm moves, the graph begins at its output.
    stream = [norm.input] if norm.input.requires_grad else []
    into_merge, *others = torch.autograd.grad(
        scores.sum(),
        [merge.input, *stream, *(call.output for call in local)],
        retain_graph=True,
        materialize_grads=True,
    )
    into_stream, local_deltas = others[: len(stream)], others[len(stream) :]

    # Through the attention: to the readers that mix positions, and to what all of them read.
    crossing = [call for call in readers if not call.rule.local]
    outputs = [call.output for call in crossing]
    leaves = [call.leaf for call in readers if call.leaf is not None]
    through = _batched([merge.input], [*outputs, *leaves], [places.one_by_one(into_merge)])
    crossing_deltas, into_leaves = through[: len(outputs)], through[len(outputs) :]

    # Below: from the norm's output by what was read, and along the residual stream beside it.
    below = _on_sequences(calls[: calls.index(norm) + 1], places)
    below_deltas = _batched(
        [norm.output, *stream],
        [call.output for call in below],
        [sum(into_leaves[1:], into_leaves[0]), *map(places.one_by_one, into_stream)],
    )
    deltas = [*crossing_deltas, *below_deltas]
    return _by_response([*crossing, *below], deltas, local, local_deltas, places)


def _on_sequences(calls: Sequence[Call], places: Places) -> list[Call]:
    """The calls on whole sequences.

    The head and its adapters are called only on the predicting positions, in one row.
    """
    return [call for call in calls if not call.rule.head and call.output.shape[:-1] == places.shape]


def _by_response(
    calls: Sequence[Call],
    deltas: Sequence[Float[Tensor, "most rows length _"]],
    local: Sequence[Call],
    local_deltas: Sequence[Float[Tensor, "_ _ _"]],
    places: Places,
) -> list[list[Signal]]:
    """The signals of calls on whole sequences, and of local ones, by response."""
    responses = []
    for row in range(len(places.tokens)):
        signals = []
        for call, delta in zip(calls, deltas, strict=True):
            signals.append(_at_positions(call, delta, places, row))
        for call, delta in zip(local, local_deltas, strict=True):
            signals.append(_at_tokens(call, delta, places, row))
        responses.append(signals)
    return responses


def _call_of(rule: Rule, calls: Sequence[Call]) -> Call:
    return next(call for call in calls if call.rule is rule)


def _batched(
    outputs: Sequence[Float[Tensor, " ..."]],
    inputs: Sequence[Float[Tensor, "rows length _"]],
    cotangents: Sequence[Float[Tensor, "most ..."]],
) -> list[Float[Tensor, "most rows length _"]]:
    """Gradients by the inputs for a batch of cotangents; zero where no path leads to an input."""
    gradients = torch.autograd.grad(
        outputs, inputs, cotangents, is_grads_batched=True, allow_unused=True, retain_graph=True
    )
    tokens = len(cotangents[0])
    return [
        tensor.new_zeros(tokens, *tensor.shape) if gradient is None else gradient
        for tensor, gradient in zip(inputs, gradients, strict=True)
    ]


def _at_positions(
    call: Call, signal: Float[Tensor, "most rows length d_out"], places: Places, row: int
) -> Signal:
    """A response's signal at all its positions but the last, which predicts nothing."""
    tokens, end = places.tokens[row], places.ends[row]
    delta = signal[: tokens.stop - tokens.start, row, :end]
    return Signal(call.rule, call.input[row, :end].detach(), delta.detach())


def _at_tokens(
    call: Call, signal: Float[Tensor, "rows positions d_out"], places: Places, row: int
) -> Signal:
    """A response's signal at each token's own position: the head sees only those."""
    tokens = places.tokens[row]
    at = (0, tokens) if call.rule.head else (row, places.position[tokens])
    return Signal(call.rule, call.input[at].detach(), signal[at])


def find_tail(
    policy: PolicyFunction, at: Weights, rules: Sequence[Rule], sample: WeightedResponse
) -> tuple[list[Rule], Tail | None]:
    """The rules, with local modules marked, and the tail, or None if it is not usable.

    A module is local if no token's signal on the sample leaves the token's own position. The last
    module that is not local belongs to the last attention; the modules that read the same tensor
    are its readers.
    """
    batch = weighted_batch([sample], policy)
    places = Places.of([sample], batch)
    with recorded_calls(rules, set()) as calls, torch.enable_grad():
        scores = _scores(policy, at, [sample], batch)
    without_tail = list(rules), None
    called_once = len({id(call.rule) for call in calls}) == len(calls)
    if not called_once or len(sample.sequence.ids) < 3:
        return without_tail
    local = {
        id(signal.rule)
        for signal in _from_the_head(scores, calls, places)[0]
        if not signal.rule.local and _stays_at(signal.delta, batch.position)
    }
    body = [call for call in _on_sequences(calls, places) if call.rule.kind != "embedding"]
    mixing = [place for place, call in enumerate(body) if id(call.rule) not in local]
    if not mixing:
        return without_tail
    last = mixing[-1]
    read = body[last].input
    readers = [call for call in body if call.input is read]
    norms = [call for call in body if call.output is read and call.rule.kind == "norm"]
    behind = [call for call in body[last + 1 :] if call.input is not read]
    if len(norms) != 1 or not behind:
        return without_tail
    local &= {id(call.rule) for call in [*readers, *behind]}
    marked = {}
    for rule in rules:
        marked[id(rule)] = replace(rule, local=rule.head or id(rule) in local)
    tail = Tail(
        norm=marked[id(norms[0].rule)],
        readers=tuple(marked[id(call.rule)] for call in readers),
        merge=marked[id(behind[0].rule)],
    )
    return list(marked.values()), tail


def _stays_at(
    signal: Float[Tensor, "tokens positions d_out"], position: Int[Tensor, " tokens"]
) -> bool:
    elsewhere = signal.clone()
    elsewhere[torch.arange(len(position)), position] = 0
    return not bool(elsewhere.any())
