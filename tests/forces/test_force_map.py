from __future__ import annotations

import pytest
import torch
from torch import nn

from dynolab.data.batches import collate
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import (
    ForceMap,
    FrozenUpdate,
    PolicyFunction,
    force_map,
    side_gradients,
    split_step,
    token_forces,
)
from dynolab.forces.costs import choose_route, kernel_flops, route_flops
from dynolab.forces.gram import Kernel
from dynolab.forces.rules import find_rules, subspace
from dynolab.objectives import DPO, SFT, DPOConfig, SFTConfig
from dynolab.training.config import OptimizerConfig, TrainConfig
from tests.forces.families import FAMILIES, build, dpo_map_by_differences
from tests.forces.small_models import (
    encoded,
    pair,
    pairs,
    relative,
    train_steps,
    with_reference,
)

OBSERVED = [encoded(1, 4, 6), encoded(2, 5, 3)]
OBJECTIVE = DPO(DPOConfig())
ETA = 0.1


def tensor(found: ForceMap) -> torch.Tensor:
    return torch.tensor(found.force)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_three_routes_agree(family, dtype, bound):
    model = build(family, dtype)
    policy = PolicyFunction(model, dtype)
    examples = with_reference(model, pairs(2))

    def by(route: str, **more: int) -> torch.Tensor:
        return tensor(
            force_map(policy, OBSERVED, examples, OBJECTIVE, update=ETA, route=route, **more)
        )

    columns = by("columns")
    assert columns.dtype == dtype
    assert relative(by("rows"), columns) < bound
    assert relative(by("both_sides"), columns) < bound
    # Memory for little more than one sequence: groups and spans of responses.
    assert relative(by("both_sides", memory_bytes=2**19 * dtype.itemsize // 4), columns) < bound


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_on_one_token_alone_is_its_column(family):
    model = build(family)
    policy = PolicyFunction(model, torch.float64)
    examples = with_reference(model, pairs(1))
    found = force_map(policy, OBSERVED[:1], examples, OBJECTIVE, update=ETA, route="both_sides")
    truth = dpo_map_by_differences(policy, OBSERVED[0], examples[0], beta=0.1, eta=ETA)
    assert relative(tensor(found), truth) < 1e-6


def test_columns_sum_to_the_derivative_along_the_step():
    model = build("llama_tied")
    record = recorded(model)
    policy = PolicyFunction(model, torch.float64)
    found = force_map(
        policy, OBSERVED, record.examples, OBJECTIVE, update=ETA, at=record.before,
    )  # fmt: skip
    gradient = side_gradients(record, policy).total()
    step = {name: -ETA * g for name, g in gradient.items()}
    along = policy.change_along(record.before, [step], collate(OBSERVED, 0))[0]
    assert relative(tensor(found).sum(1), along) < 1e-10


@pytest.mark.parametrize("family", ["llama_tied", "gpt2", "gpt_neox"])
def test_an_optimizer_s_scale_is_the_metric(family):
    """The map under a realised AdamW step is what the step's own replay gives token by token."""
    model = build(family)
    record = recorded(model)
    policy = PolicyFunction(model, torch.float64)
    update = split_step(record, policy).update
    made = {
        route: force_map(
            policy, OBSERVED[:1], record.examples, OBJECTIVE, update=update, at=record.before,
            route=route, memory_bytes=memory,
        )
        for route, memory in (("both_sides", 2**30), ("rows", 2**30), ("columns", 2**30))
    }  # fmt: skip
    for number in range(len(record.examples)):
        truth = token_forces(record, policy, update, number, OBSERVED[0], at=record.before)
        for found in made.values():
            both = [torch.tensor(found.block(0, 2 * number + side)) for side in (0, 1)]
            assert relative(torch.cat(both, dim=1), truth) < 1e-10


def recorded(model):
    optimizer = OptimizerConfig(name="adamw", learning_rate=1e-3)
    config = TrainConfig(
        objective=DPOConfig(), optimizer=optimizer, engine={"kind": "plain", "ranks": 1}
    )
    return train_steps(model, config, with_reference(model, pairs(2)), steps=2).records[-1]


def test_cutting_a_response_leaves_what_stands_before_alone():
    model = build("qwen2")
    policy = PolicyFunction(model, torch.float64)
    whole, cut = pair(3, chosen=6), pair(3, chosen=6)
    cut = cut.model_copy(update={"chosen": Encoded(cut.chosen.ids[:-2], 4)})
    shorter = Encoded(OBSERVED[0].ids[:-2], OBSERVED[0].prompt_length)
    objective = SFT(SFTConfig())
    full = tensor(force_map(policy, OBSERVED[:1], [whole], objective, route="both_sides"))
    part = tensor(force_map(policy, [shorter], [cut], objective, route="both_sides"))
    assert relative(part, full[:-2, :-2]) < 1e-10


def test_maps_add_over_the_batch_and_do_not_see_their_neighbours():
    """Denominators aside, a block is the same whatever stands beside it, and however long."""
    model = build("llama_untied")
    policy = PolicyFunction(model, torch.float64)
    examples = with_reference(model, pairs(3))
    for route in ("columns", "rows", "both_sides"):
        whole = force_map(policy, OBSERVED, examples, OBJECTIVE, route=route)
        for o, observed in enumerate(OBSERVED):
            for e, example in enumerate(examples):
                alone = force_map(policy, [observed], [example], OBJECTIVE, route=route)
                for side in (0, 1):
                    block = torch.tensor(whole.block(o, 2 * e + side))
                    assert relative(3 * block, torch.tensor(alone.block(0, side))) < 1e-10


def test_one_token_of_prompt_and_response():
    model = build("gpt2")
    policy = PolicyFunction(model, torch.float64)
    observed, example = encoded(5, 1, 1), pair(6, prompt=1, chosen=1, rejected=1)
    examples = with_reference(model, [example])
    made = [
        tensor(force_map(policy, [observed], examples, OBJECTIVE, route=route))
        for route in ("columns", "rows", "both_sides")
    ]
    assert made[0].shape == (1, 2)
    assert relative(made[1], made[0]) < 1e-10
    assert relative(made[2], made[0]) < 1e-10


def test_sft_on_its_own_response_pushes_it_up_by_the_gradient_s_square():
    model = build("mistral")
    policy = PolicyFunction(model, torch.float64)
    example = pair(8)
    found = force_map(policy, [example.chosen], [example], SFT(SFTConfig()), update=ETA)
    leaves = {name: w.clone().requires_grad_() for name, w in policy.weights.items()}
    total = policy.logps(leaves, collate([example.chosen], 0)).sum()
    g = torch.autograd.grad(total, list(leaves.values()))
    square = sum(float(one.square().sum()) for one in g)
    assert found.force.sum() == pytest.approx(ETA * square, rel=1e-10)


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
        tensor(force_map(policy, OBSERVED, examples, OBJECTIVE, route=route))
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
        tensor(force_map(policy, OBSERVED, examples, OBJECTIVE, route=route))
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
        force_map(policy, OBSERVED, examples, OBJECTIVE, route=route)
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
    scaled = force_map(policy, OBSERVED, examples, OBJECTIVE, update=ones)
    plain = force_map(policy, OBSERVED, examples, OBJECTIVE, update=ETA)
    assert scaled.facts.preconditioned
    assert relative(tensor(scaled), tensor(plain)) < 1e-10
