from __future__ import annotations

import pytest
import torch
from torch import nn

from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import (
    ForceMap,
    FrozenUpdate,
    PolicyFunction,
    force_map,
    split_step,
    token_forces,
)
from dynolab.forces.function.rules import find_rules, subspace
from dynolab.forces.map.costs import choose_route, kernel_flops, route_flops
from dynolab.forces.map.gram import Kernel
from dynolab.objectives import SFT, SFTConfig
from tests.forces.families import DPO_LOSS, ETA, OBSERVED, build
from tests.forces.small_models import (
    encoded,
    pair,
    pairs,
    recorded,
    relative,
    with_reference,
)


def tensor(found: ForceMap) -> torch.Tensor:
    return torch.tensor(found.force)


@pytest.mark.parametrize("family", ["llama_tied", "gpt2", "gpt_neox"])
def test_an_optimizer_s_scale_is_the_metric(family):
    """The map under a realised AdamW step is what the step's own replay gives token by token."""
    model = build(family)
    record = recorded(model)
    policy = PolicyFunction(model, torch.float64)
    update = split_step(record, policy).update
    made = {
        route: force_map(
            policy,
            OBSERVED[:1],
            record.examples,
            DPO_LOSS,
            update=update,
            at=record.before,
            route=route,
            memory_bytes=memory,
        )
        for route, memory in (("both_sides", 2**30), ("rows", 2**30), ("columns", 2**30))
    }
    for number in range(len(record.examples)):
        truth = token_forces(record, policy, update, number, OBSERVED[0], at=record.before)
        for found in made.values():
            both = [torch.tensor(found.block(0, 2 * number + side)) for side in (0, 1)]
            assert relative(torch.cat(both, dim=1), truth) < 1e-10


class Scaled(nn.Module):
    """A module of no known kind, with a parameter that another one shares in part."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner = inner
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, width, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.gain + 0.1 * (x @ self.inner.weight.T)


def test_parameters_of_unknown_modules_are_kept_by_the_generic_route():
    """A new parameter, and one that is used beside its own module where no hook sees it."""
    model = build("llama_tied")
    attention = model.model.layers[0].self_attn
    attention.o_proj = Scaled(attention.o_proj, 32)
    policy = PolicyFunction(model, torch.float64)
    kernel = Kernel.build(policy, None, subspace(policy), None, OBSERVED[0])
    place = "model.layers.0.self_attn.o_proj"
    assert kernel.generic == {f"{place}.gain", f"{place}.inner.weight"}
    examples = with_reference(model, pairs(1))
    columns, both = (
        tensor(force_map(policy, OBSERVED, examples, DPO_LOSS, route=route))
        for route in ("columns", "both_sides")
    )
    assert relative(both, columns) < 1e-10


def test_a_module_called_twice_counts_twice():
    model = build("llama_untied")
    model.model.layers[1].mlp = model.model.layers[0].mlp
    policy = PolicyFunction(model, torch.float64)
    examples = with_reference(model, pairs(1))
    assert not Kernel.build(policy, None, subspace(policy), None, OBSERVED[0]).generic
    columns, both = (
        tensor(force_map(policy, OBSERVED, examples, DPO_LOSS, route=route))
        for route in ("columns", "both_sides")
    )
    assert relative(both, columns) < 1e-10


def test_only_parameters_that_train_move_and_the_map_says_so():
    model = build("gpt_neox").requires_grad_(False)
    trained = "gpt_neox.layers.0.mlp.dense_h_to_4h.weight"
    dict(model.named_parameters())[trained].requires_grad_()
    policy = PolicyFunction(model, torch.float64)
    examples = with_reference(model, pairs(1))
    columns, both = (
        force_map(policy, OBSERVED, examples, DPO_LOSS, route=route)
        for route in ("columns", "both_sides")
    )
    assert not Kernel.build(policy, None, subspace(policy), None, OBSERVED[0]).generic
    assert both.facts.subspace == [trained]
    assert relative(tensor(both), tensor(columns)) < 1e-10


def test_the_route_is_the_one_with_the_fewest_operations():
    """Many to many goes by both sides; one token on one response by columns or rows."""
    policy = PolicyFunction(build("llama_tied"), torch.float64)
    rules = find_rules(policy, subspace(policy))
    many = [(32, 64)] * 16
    assert choose_route(rules, many, many) == "both_sides"
    counts = route_flops(rules, many, many)
    assert min(counts.values()) == counts["both_sides"]
    # Few positions against a wide matrix: signals are carried, gradients never formed.
    assert kernel_flops([(4, 8)], [(4, 8)], 4096, 64) < 2 * 4096 * 64 * 4 * 4


@pytest.mark.parametrize(
    ("observed", "message"),
    [
        ([], "at least one response"),
        ([Encoded((3, 4, 5), 3)], "no response tokens"),
        ([Encoded((3, 4, 5), 0)], "no prompt token"),
        ([encoded(1, 20, 20)], "context holds 32"),
        ([Encoded((3, 4, 5000), 2)], "vocabulary has 50"),
    ],
)
def test_impossible_responses_are_refused(observed, message):
    policy = PolicyFunction(build("gpt2", torch.float32))
    with pytest.raises(ConfigError, match=message):
        force_map(policy, observed, [pair(1)], SFT(SFTConfig()))


def test_weights_that_are_no_numbers_and_16_bits_are_refused():
    model = build("gpt2", torch.float32)
    with pytest.raises(ConfigError, match="no sign"):
        force_map(PolicyFunction(model, torch.bfloat16), OBSERVED, [pair(1)], SFT(SFTConfig()))
    with torch.no_grad():
        model.transformer.ln_f.weight[0] = float("nan")
    with pytest.raises(ConfigError, match=r"ln_f\.weight.*divergence"):
        force_map(PolicyFunction(model), OBSERVED, [pair(1)], SFT(SFTConfig()))


def test_a_budget_that_holds_no_token_is_refused_with_what_it_takes():
    policy = PolicyFunction(build("gpt2", torch.float32))
    with pytest.raises(ConfigError, match=r"memory_bytes = 1000: .* give at least"):
        force_map(policy, OBSERVED, [pair(1)], SFT(SFTConfig()), memory_bytes=1000)


def test_a_frozen_scale_of_ones_is_plain_descent():
    model = build("qwen2")
    policy = PolicyFunction(model, torch.float64)
    examples = with_reference(model, pairs(1))
    ones = FrozenUpdate({name: torch.full_like(w, ETA) for name, w in policy.weights.items()}, {})
    scaled = force_map(policy, OBSERVED, examples, DPO_LOSS, update=ones)
    plain = force_map(policy, OBSERVED, examples, DPO_LOSS, update=ETA)
    assert scaled.facts.preconditioned
    assert relative(tensor(scaled), tensor(plain)) < 1e-10
