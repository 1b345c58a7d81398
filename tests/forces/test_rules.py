"""Which parameters have a rule, which move, and which module makes the logits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dynolab.forces import PolicyFunction
from dynolab.forces.function.rules import Rule, find_rules, subspace
from tests.forces.families import build


def described(policy: PolicyFunction, wanted: set[str] | None = None) -> list[tuple[object, ...]]:
    every = subspace(policy) if wanted is None else wanted
    return [
        (rule.kind, rule.weight, rule.bias, rule.transposed, rule.head, rule.local)
        for rule in find_rules(policy, every)
    ]


def test_every_parameter_of_a_gpt_2_has_a_rule() -> None:
    """Conv1D stores its weight the other way round; the tied head is a rule of its own."""
    policy = PolicyFunction(build("gpt2", torch.float32))
    rules = described(policy)
    first = "transformer.h.0"
    assert ("embedding", "transformer.wte.weight", None, False, False, False) in rules
    assert ("embedding", "transformer.wpe.weight", None, False, False, False) in rules
    for name, kind, transposed in (
        ("ln_1", "norm", False),
        ("attn.c_attn", "linear", True),
        ("mlp.c_proj", "linear", True),
    ):
        both = f"{first}.{name}.weight", f"{first}.{name}.bias"
        assert (kind, *both, transposed, False, False) in rules
    assert rules[-1] == ("linear", "transformer.wte.weight", None, False, True, True)
    assert sum(rule[4] for rule in rules) == sum(rule[5] for rule in rules) == 1
    named = {name for rule in find_rules(policy, subspace(policy)) for name in rule.names}
    assert named == set(policy.weights)


@pytest.mark.parametrize("family", ["gpt_neox", "llama_untied", "qwen2"])
def test_every_parameter_of_other_families_has_a_rule(family: str) -> None:
    policy = PolicyFunction(build(family, torch.float32))
    found = find_rules(policy, subspace(policy))
    assert {name for rule in found for name in rule.names} == set(policy.weights)
    assert not any(rule.transposed for rule in found)
    norms = [rule for rule in found if rule.kind == "norm"]
    assert all("norm" in str(rule.weight) for rule in norms) and len(norms) == 5


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
