"""Which parameters have a rule, and signals of single tokens against autograd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dynolab.data.encode import Encoded
from dynolab.forces import PolicyFunction
from dynolab.forces.function.rules import Rule, find_rules, subspace
from dynolab.forces.map import gram
from dynolab.forces.map.gram import TokenGradients
from dynolab.forces.map.output_gradients import Tail, find_tail, token_signals
from dynolab.forces.map.weighted import WeightedResponse, weighted_batch
from tests.forces.families import build
from tests.forces.small_models import encoded, relative

FAMILIES = ["llama_tied", "llama_untied", "gpt2", "gpt_neox"]
SEQUENCE = encoded(5, prompt=3, response=4)


def ask(
    policy: PolicyFunction, sequence: Encoded = SEQUENCE
) -> tuple[list[Rule], list[Rule], Tail | None]:
    """Plain rules, and what is made of them by trying a response."""
    plain = find_rules(policy, subspace(policy))
    sample = WeightedResponse.own(sequence, policy)
    return plain, *find_tail(policy, policy.weights, plain, sample)


def names(policy: PolicyFunction, rules: list[Rule] | tuple[Rule, ...]) -> list[str]:
    paths = {id(module): name for name, module in policy.model.named_modules()}
    return [paths[id(rule.module)].removeprefix("model.") for rule in rules]


@pytest.mark.parametrize(
    ("family", "norm", "readers", "merge", "local"),
    [
        (
            "llama_untied",
            "layers.1.input_layernorm",
            [f"layers.1.self_attn.{name}_proj" for name in "qkv"],
            "layers.1.self_attn.o_proj",
            # Queries act at their own position alone; keys and values are read by later ones.
            [
                "layers.1.self_attn.q_proj",
                "layers.1.self_attn.o_proj",
                "layers.1.post_attention_layernorm",
                *(f"layers.1.mlp.{name}_proj" for name in ("gate", "up", "down")),
                "norm",
                "lm_head",
            ],
        ),
        (
            "gpt2",
            "transformer.h.1.ln_1",
            ["transformer.h.1.attn.c_attn"],
            "transformer.h.1.attn.c_proj",
            [
                "transformer.h.1.attn.c_proj",
                "transformer.h.1.ln_2",
                "transformer.h.1.mlp.c_fc",
                "transformer.h.1.mlp.c_proj",
                "transformer.ln_f",
                "lm_head",
            ],
        ),
    ],
    ids=["llama", "gpt2"],
)
def test_a_tail_begins_behind_the_last_attention(
    family: str, norm: str, readers: list[str], merge: str, local: list[str]
) -> None:
    policy = PolicyFunction(build(family), torch.float64)
    plain, rules, tail = ask(policy)
    assert tail is not None
    parts = names(policy, [tail.norm]), names(policy, tail.readers), names(policy, [tail.merge])
    assert parts == ([norm], readers, [merge])
    assert names(policy, rules) == names(policy, plain)
    assert sorted(names(policy, [rule for rule in rules if rule.local])) == sorted(local)
    assert {id(rule) for rule in (tail.norm, tail.merge, *tail.readers)} <= set(map(id, rules))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_signals_are_autograds_token_by_token(family: str, temperature: float) -> None:
    """With a tail and without one, at every module that has a rule."""
    policy = PolicyFunction(build(family), torch.float64)
    plain, rules, tail = ask(policy)
    response = replace(WeightedResponse.own(SEQUENCE, policy), temperature=temperature)
    truth = autograd_signals(policy, plain, response)
    position = weighted_batch([response], policy).position
    for some, end in ((plain, None), (rules, tail)):
        (found,) = token_signals(policy, policy.weights, some, end, [response])
        assert sorted(id(one.rule) for one in found) == sorted(map(id, some))
        for signal in found:
            inputs, deltas = truth[id(signal.rule.module)]
            if signal.rule.head:
                # The head is called on the predicting positions: row m is token m's.
                deltas = deltas.diagonal().T
            elif signal.rule.local:
                deltas = deltas[torch.arange(len(position)), position]
                inputs = inputs[position]
            else:
                inputs, deltas = inputs[:-1], deltas[:, :-1]
            assert signal.input.shape == inputs.shape
            assert torch.equal(signal.input, inputs)
            assert signal.delta.shape == deltas.shape
            assert relative(signal.delta, deltas) < 1e-10


def autograd_signals(
    policy: PolicyFunction, rules: list[Rule], response: WeightedResponse
) -> dict[int, tuple[Tensor, Tensor]]:
    """Input and gradients of every token's log π, one by one, by module."""
    with recorded([rule.module for rule in rules]) as calls:
        scores = response.scores(policy, policy.weights)
    outputs = [output for _, output in calls.values()]
    rows = [torch.autograd.grad(score, outputs, retain_graph=True) for score in scores]
    return {
        name: (inputs[0], torch.stack([row[number][0] for row in rows]))
        for number, (name, (inputs, _)) in enumerate(calls.items())
    }


@contextmanager
def recorded(modules: list[nn.Module]) -> Iterator[dict[int, tuple[Tensor, Tensor]]]:
    calls: dict[int, tuple[Tensor, Tensor]] = {}

    def record(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        calls[id(module)] = arguments[0].detach(), output.requires_grad_()

    hooks = [module.register_forward_hook(record) for module in modules]
    yield calls
    for hook in hooks:
        hook.remove()


def test_short_responses_and_modules_called_twice_have_no_tail() -> None:
    policy = PolicyFunction(build("llama_untied"), torch.float64)
    for length, has_tail in ((2, False), (3, True)):
        plain, rules, tail = ask(policy, Encoded(SEQUENCE.ids[:length], 1))
        assert (tail is not None) == has_tail
        if tail is None:
            assert rules == plain
    model = build("llama_untied")
    model.model.layers[1].mlp = model.model.layers[0].mlp
    plain, rules, tail = ask(PolicyFunction(model, torch.float64))
    assert tail is None and rules == plain


WEIGHTED = encoded(3, prompt=4, response=3)


def two_targets(sequence: Encoded, temperature: float) -> WeightedResponse:
    generator = torch.Generator().manual_seed(sequence.ids[0])
    shape = (sequence.response_length, 2)
    return WeightedResponse(
        sequence,
        torch.randint(3, 50, shape, generator=generator),
        torch.randn(shape, generator=generator, dtype=torch.float64),
        temperature,
    )


def test_scores_are_weighted_sums_at_the_responses_temperature(policy: PolicyFunction) -> None:
    one = two_targets(WEIGHTED, 0.5)
    with torch.no_grad():
        logits = policy.model(torch.tensor([WEIGHTED.ids])).logits[0, 3:6]
    logps = torch.log_softmax(logits / 0.5, dim=-1)
    expected = [
        sum(
            float(w * logps[row, t])
            for w, t in zip(one.weights[row], one.targets[row], strict=True)
        )
        for row in range(3)
    ]
    assert one.scores(policy, policy.weights).tolist() == pytest.approx(expected, rel=1e-10)


def test_responses_share_a_pass_where_they_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = PolicyFunction(build("llama_untied"), torch.float64)
    gradients = TokenGradients.build(policy, None, subspace(policy), None, SEQUENCE)
    lengths = [(3, 4), (3, 12), (3, 4), (4, 4), (20, 4)]
    responses = [
        WeightedResponse.own(encoded(seed, *length), policy) for seed, length in enumerate(lengths)
    ]
    warm = replace(WeightedResponse.own(encoded(7, 3, 4), policy), temperature=2.0)
    assert list(gradients._together([*responses, warm])) == [[0, 2, 3], [4], [1], [5]]
    monkeypatch.setattr(gram, "TOGETHER", 1)
    assert list(gradients._together(responses)) == [[0], [2], [3], [4], [1]]
    for factors, response in zip(gradients.factors(responses), responses, strict=True):
        assert factors.tokens == len(response.weights)
        assert factors.positions == len(response.sequence.ids) - 1


def described(policy: PolicyFunction, wanted: set[str] | None = None) -> list[tuple[object, ...]]:
    every = subspace(policy) if wanted is None else wanted
    return [
        (rule.kind, rule.weight, rule.bias, rule.transposed, rule.head, rule.local)
        for rule in find_rules(policy, every)
    ]


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama_untied", "qwen2"])
def test_every_parameter_has_a_rule(family: str) -> None:
    """Conv1D stores its weight the other way round."""
    policy = PolicyFunction(build(family, torch.float32))
    found = find_rules(policy, subspace(policy))
    assert {name for rule in found for name in rule.names} == set(policy.weights)
    assert any(rule.transposed for rule in found) == (family == "gpt2")
    assert sum(rule.kind == "norm" for rule in found) == 5
    assert [rule.head for rule in found] == [rule.local for rule in found]


def test_a_rule_speaks_for_wanted_parameters_and_the_head_has_one_always() -> None:
    policy = PolicyFunction(build("gpt2", torch.float32))
    assert described(policy, {"transformer.h.1.mlp.c_fc.bias"}) == [
        ("linear", None, "transformer.h.1.mlp.c_fc.bias", True, False, False),
        ("linear", None, None, False, True, True),
    ]
    assert described(policy, {"transformer.h.1.mlp.c_fc.weight"})[0] == (
        *("linear", "transformer.h.1.mlp.c_fc.weight", None),
        *(True, False, False),
    )
    assert described(policy, set()) == [("linear", None, None, False, True, True)]


@pytest.mark.parametrize(
    ("rule", "sizes"),
    [
        (Rule(nn.Linear(2, 3), "linear", "w", "b"), (2, 3)),
        (Rule(nn.Linear(2, 3), "linear", "w", "b", transposed=True), (3, 2)),
        (Rule(nn.Embedding(5, 4), "embedding", "w", None), (5, 4)),
        (Rule(nn.LayerNorm(6), "norm", "w", "b"), (6, 6)),
    ],
)
def test_sizes_are_those_of_input_and_output(rule: Rule, sizes: tuple[int, int]) -> None:
    assert rule.sizes == sizes


def test_all_parameters_move_where_none_requires_a_gradient() -> None:
    model = build("llama_untied", torch.float32)
    policy = PolicyFunction(model)
    assert subspace(policy) == set(policy.weights)
    model.requires_grad_(False)
    assert subspace(policy) == set(policy.weights)
    model.lm_head.weight.requires_grad_()
    assert subspace(policy) == {"lm_head.weight"}
