"""Gradients of each response token's score at the output of every module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from dynolab.data.batches import TokenBatch
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
        return cls(
            row=batch.token_row,
            position=batch.position,
            number=torch.cat([torch.arange(length) for length in lengths]).to(
                batch.position.device
            ),
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


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a module; `leaf` stands in for its input, where one does."""

    rule: Rule
    input: Shaped[Tensor, "*shape"]
    output: Float[Tensor, " ..."]
    leaf: Float[Tensor, "*shape"] | None


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
    weights, targets = (
        torch.cat([getattr(response, name) for response in responses])
        for name in ("weights", "targets")
    )
    pull = -target_force(weights, logits.detach(), targets, batch.temperature)
    return (pull * logits).sum(-1)


def _from_the_head(
    scores: Float[Tensor, " tokens"], calls: Sequence[Call], places: Places
) -> list[list[Signal]]:
    """Starts at the logits: a row belongs to its token alone, whatever the head computes."""
    heads = [call for call in calls if call.rule.head]
    body = _on_sequences(calls, places)
    one_by_one = functional.one_hot(places.number).T.to(scores)
    start, local, at_tokens = scores, [], []
    if len(heads) == 1:
        (head,) = heads
        delta, cotangent = torch.autograd.grad(
            scores.sum(), [head.output, head.input], retain_graph=True
        )
        start, one_by_one = head.input, one_by_one[:, None, :, None] * cotangent
        local, at_tokens = heads, [delta]
    gradients = _batched([start], [call.output for call in body], [one_by_one]) if body else []
    return _by_response(body, gradients, local, at_tokens, places)


def _from_the_last_attention(
    scores: Float[Tensor, " tokens"], calls: Sequence[Call], tail: Tail, places: Places
) -> list[list[Signal]]:
    """One backward after the last attention; through it and below, token by token.

    The attention's readers have leaves as inputs, so only the residual stream's gradient reaches
    the norm's input, and it stays at its own position.
    """
    norm, merge = (_call_of(rule, calls) for rule in (tail.norm, tail.merge))
    readers = [_call_of(rule, calls) for rule in tail.readers]
    local = [call for call in calls if call.rule.local]
    # Where nothing below the norm moves, the graph begins at its output.
    stream = [norm.input] if norm.input.requires_grad else []
    *at_tokens, mixed = torch.autograd.grad(
        scores.sum(),
        [*(call.output for call in local), *stream, merge.input],
        retain_graph=True,
        materialize_grads=True,
    )
    residual = [places.one_by_one(at_tokens.pop()) for _ in stream]

    crossing = [call for call in readers if not call.rule.local]
    leaves = [call.leaf for call in readers if call.leaf is not None]
    through = _batched(
        [merge.input],
        [*(call.output for call in crossing), *leaves],
        [places.one_by_one(mixed)],
    )
    below = _on_sequences(calls[: calls.index(norm) + 1], places)
    read = sum(through[len(crossing) + 1 :], through[len(crossing)])
    deep = _batched(
        [norm.output, *stream],
        [call.output for call in below],
        [read, *residual],
    )
    gradients = [*through[: len(crossing)], *deep]
    return _by_response([*crossing, *below], gradients, local, at_tokens, places)


def _on_sequences(calls: Sequence[Call], places: Places) -> list[Call]:
    """The calls on whole sequences.

    The head and its adapters are called only on the predicting positions, in one row.
    """
    return [call for call in calls if not call.rule.head and call.output.shape[:-1] == places.shape]


def _by_response(
    sequence_calls: Sequence[Call],
    gradients: Sequence[Float[Tensor, "most rows length _"]],
    local: Sequence[Call],
    at_tokens: Sequence[Float[Tensor, "_ _ _"]],
    places: Places,
) -> list[list[Signal]]:
    """The signals of calls on whole sequences, and of local ones, by response."""
    responses = []
    for row in range(len(places.tokens)):
        signals = []
        for call, gradient in zip(sequence_calls, gradients, strict=True):
            signals.append(_at_positions(call, gradient, places, row))
        for call, signal in zip(local, at_tokens, strict=True):
            signals.append(_at_tokens(call, signal, places, row))
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
    body = [call for call in _on_sequences(calls, places) if call.rule.kind != "embedding"]
    once = len({id(call.rule) for call in calls}) == len(calls)
    if not once or len(sample.sequence.ids) < 3:
        return list(rules), None
    local = {
        id(signal.rule)
        for signal in _from_the_head(scores, calls, places)[0]
        if not signal.rule.local and _stays_at(signal.delta, batch.position)
    }
    mixing = [call for call in body if id(call.rule) not in local]
    if not mixing:
        return list(rules), None
    read = mixing[-1].input
    readers = [call for call in body if call.input is read]
    norms = [call for call in body if call.output is read and call.rule.kind == "norm"]
    behind = [call for call in body[body.index(mixing[-1]) + 1 :] if call.input is not read]
    if len(norms) != 1 or not behind:
        return list(rules), None
    local &= {id(call.rule) for call in [*readers, *behind]}
    marked = {id(r): replace(r, local=r.head or id(r) in local) for r in rules}
    tail = Tail(
        norm=marked[id(norms[0].rule)],
        readers=tuple(marked[id(call.rule)] for call in readers),
        merge=marked[id(behind[0].rule)],
    )
    return [marked[id(rule)] for rule in rules], tail


def _stays_at(
    signal: Float[Tensor, "tokens positions d_out"], position: Int[Tensor, " tokens"]
) -> bool:
    elsewhere = signal.clone()
    elsewhere[torch.arange(len(position)), position] = 0
    return not bool(elsewhere.any())


@contextmanager
def recorded_calls(
    rules: Sequence[Rule], cut: set[int], take: Callable[[Call], None] | None = None
) -> Iterator[list[Call]]:
    """Records every call of the rules' modules, with outputs that require a gradient.

    Modules in `cut` (by identity) get a leaf in place of their input. The head's input requires a
    gradient, too, where nothing before it does.

    **Arguments:** `take`: gets each call in place of the list, which then holds no outputs.
    """
    calls: list[Call] = []
    take = take or calls.append
    leaves: dict[int, tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]] = {}

    def stand_in(
        module: nn.Module, arguments: tuple[Shaped[Tensor, " ..."], ...]
    ) -> tuple[Shaped[Tensor, " ..."], ...]:
        leaf = arguments[0].detach().requires_grad_()
        leaves[id(module)] = arguments[0], leaf
        return (leaf, *arguments[1:])

    def begin_at_the_input(
        module: nn.Module, arguments: tuple[Shaped[Tensor, " ..."], ...]
    ) -> None:
        if not arguments[0].requires_grad:
            arguments[0].requires_grad_()

    def hook(rule: Rule):  # type: ignore[no-untyped-def]
        def record(
            module: nn.Module,
            arguments: tuple[Shaped[Tensor, " ..."], ...],
            output: Float[Tensor, " ..."],
        ) -> None:
            # Weights are constants here, so the graph begins at the embeddings' outputs.
            if not output.requires_grad:
                output.requires_grad_()
            value, leaf = leaves.get(id(module), (arguments[0], None))
            take(Call(rule, value, output, leaf))

        return record

    with ExitStack() as hooks:
        for rule in rules:
            if rule.head:
                hooks.callback(rule.module.register_forward_pre_hook(begin_at_the_input).remove)
            if id(rule.module) in cut:
                hooks.callback(rule.module.register_forward_pre_hook(stand_in).remove)
            hooks.callback(rule.module.register_forward_hook(hook(rule)).remove)
        yield calls
