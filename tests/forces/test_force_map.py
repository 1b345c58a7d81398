"""A force map: its question, its metric, what moves, and its parts by block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import (
    Breakdown,
    ForceMap,
    FrozenUpdate,
    PolicyFunction,
    breakdown,
    force_map,
    split_step,
    token_forces,
)
from dynolab.forces.function.rules import subspace
from dynolab.forces.map import problem as problem_module
from dynolab.forces.map.blocks import block_by_name
from dynolab.forces.map.gram import Kernel
from dynolab.forces.map.problem import Problem, Updating, pose
from dynolab.objectives import SFTConfig, build_objective
from tests.forces.families import DPO_LOSS, ETA, FAMILIES, OBSERVED, build, case, map_by_tokens
from tests.forces.small_models import (
    encoded,
    pair,
    pairs,
    recorded,
    relative,
    with_reference,
)

SFT = build_objective(SFTConfig())


def tensor(found: ForceMap) -> torch.Tensor:
    return torch.tensor(found.force)


@pytest.mark.parametrize("family", ["llama_tied", "gpt2", "gpt_neox"])
def test_an_optimizer_s_scale_is_the_metric(family):
    """The map under a realised AdamW step is what the step's own replay gives token by token."""
    model = build(family)
    record = recorded(model)
    policy = PolicyFunction(model, torch.float64)
    update = split_step(record, policy).update
    truths = [
        token_forces(record, policy, update, number, OBSERVED[0], at=record.before)
        for number in range(len(record.examples))
    ]
    made = force_map(
        policy, OBSERVED[:1], record.examples, DPO_LOSS, update=update, at=record.before
    )
    assert made.facts.preconditioned
    blocks = tensor(made).split([truth.shape[1] for truth in truths], dim=1)
    for block, truth in zip(blocks, truths, strict=True):
        assert relative(block, truth) < 1e-10


class Scaled(nn.Module):
    """A module of no known kind, with a parameter that another one shares in part."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner = inner
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, width, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.gain + 0.1 * (x @ self.inner.weight.T)


def generic_of_true_map(model: nn.Module) -> frozenset[str]:
    """Parameters that have no rule, of a model whose map is that of one token after the other."""
    policy = PolicyFunction(model, torch.float64)
    generic = Kernel.build(policy, None, subspace(policy), None, OBSERVED[0]).generic
    examples = with_reference(model, pairs(1))
    found = tensor(force_map(policy, OBSERVED, examples, DPO_LOSS))
    assert relative(found, map_by_tokens(policy, OBSERVED, examples, DPO_LOSS)) < 1e-10
    return generic


def test_parameters_of_unknown_modules_are_kept_whole():
    """A new parameter, and one that is used beside its own module where no hook sees it."""
    model = build("llama_tied")
    attention = model.model.layers[0].self_attn
    attention.o_proj = Scaled(attention.o_proj, 32)
    place = "model.layers.0.self_attn.o_proj"
    assert generic_of_true_map(model) == {f"{place}.gain", f"{place}.inner.weight"}


def test_a_module_called_twice_counts_twice():
    model = build("llama_untied")
    model.model.layers[1].mlp = model.model.layers[0].mlp
    assert not generic_of_true_map(model)


def test_only_parameters_that_train_move_and_the_map_says_so():
    model = build("gpt_neox").requires_grad_(False)
    trained = "gpt_neox.layers.0.mlp.dense_h_to_4h.weight"
    model.get_parameter(trained).requires_grad_()
    assert not generic_of_true_map(model)
    policy, examples = PolicyFunction(model, torch.float64), with_reference(model, pairs(1))
    assert force_map(policy, OBSERVED, examples, DPO_LOSS).facts.subspace == [trained]


def test_a_budget_that_holds_no_token_is_refused_with_what_it_takes():
    policy = PolicyFunction(build("gpt2", torch.float32))
    with pytest.raises(ConfigError, match=r"memory_bytes = 1000: .* give at least"):
        force_map(policy, OBSERVED, [pair(1)], SFT, memory_bytes=1000)


def posed(policy: PolicyFunction, **changed: Any) -> Problem:
    arguments: dict[str, Any] = {
        "observed": [encoded(1, 4, 6)],
        "updating": with_reference(policy.model, pairs(2)),
        "objective": DPO_LOSS,
        "update": 0.25,
        "at": None,
        "observed_temperature": 1.0,
        **changed,
    }
    return pose(policy, **arguments)


def test_updating_responses_are_named_by_example_side_and_tokens(policy: PolicyFunction) -> None:
    found = posed(policy)
    sides = [(pair, side) for pair in pairs(2) for side in ("chosen", "rejected")]
    sequences = [getattr(pair, side) for pair, side in sides]
    assert found.labels == [
        Updating(pair.id, side, sequence.ids[sequence.prompt_length :])
        for (pair, side), sequence in zip(sides, sequences, strict=True)
    ]
    assert [response.sequence for response in found.updating] == sequences
    assert found.columns == sum(len(label.tokens) for label in found.labels)
    assert (found.rate, found.kernel.scale) == (0.25, None)
    chosen = posed(policy, objective=SFT)
    assert [label.side for label in chosen.labels] == ["chosen", "chosen"]


def test_observed_tokens_are_read_at_the_temperature_that_is_asked_for(
    policy: PolicyFunction,
) -> None:
    found = posed(policy, observed=[encoded(1), encoded(2)], observed_temperature=0.5)
    assert [(one.sequence, one.temperature) for one in found.observed] == [
        (encoded(1), 0.5),
        (encoded(2), 0.5),
    ]
    assert [one.temperature for one in found.updating] == [1.0] * 4


def test_what_moves_how_far_and_where_is_named_by_parameter(policy: PolicyFunction) -> None:
    name = "gpt_neox.final_layer_norm.weight"
    halves = {name: torch.full_like(policy.weights[name], 0.5)}
    kernel = posed(policy, at=halves).kernel
    assert torch.equal(kernel.at[name], halves[name])
    frozen = posed(policy, update=FrozenUpdate(halves, {}))
    assert frozen.kernel.wanted == {name} and frozen.rate == 1
    assert frozen.kernel.scale is not None
    assert torch.equal(frozen.kernel.scale[name], halves[name])


def test_rules_are_tried_on_the_first_responses_first_four_tokens(
    policy: PolicyFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Encoded] = []
    build = Kernel.build

    def watched(*arguments: Any) -> Kernel:
        tried.append(arguments[-1])
        return build(*arguments)

    monkeypatch.setattr(problem_module.Kernel, "build", watched)
    first = encoded(1, 4, 6)
    posed(policy, observed=[first, encoded(2)])
    assert tried == [Encoded(first.ids[:8], 4)]


BAD = Encoded((3, 4, 5000), 2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"observed": []}, r"^observed = \[\]: give at least one response"),
        ({"updating": []}, r"^updating = \[\]: give at least one response"),
        ({"observed": [encoded(1), BAD]}, r"^observed\[1\] = .*vocabulary has 50"),
        (
            {"updating": [pair(0), pair(1).model_copy(update={"rejected": BAD})]},
            r"^updating\[3\] = .*vocabulary has 50",
        ),
    ],
    ids=["nothing observed", "nothing updating", "observed token", "updating token"],
)
def test_a_wrong_side_is_refused_by_its_name_and_number(
    policy: PolicyFunction, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        posed(policy, **changed)


SEPARATE = {"attention.q", "attention.k", "attention.v", "attention.o", "mlp", "norms"}
FUSED = {"attention.qkv", "attention.o", "mlp", "norms"}
BLOCKS = {
    "gpt_neox": {*FUSED, "embedding", "head"},
    "gpt2": {*FUSED, "embedding", "head", "tied"},
    "llama_tied": {*SEPARATE, "embedding", "head", "tied"},
    "llama_untied": {*SEPARATE, "embedding", "head"},
    "qwen2": {*SEPARATE, "embedding", "head", "tied"},
    "mistral": {*SEPARATE, "embedding", "head"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_part_has_its_name(family):
    here = case(family)
    found = breakdown(here.policy, OBSERVED, here.examples, DPO_LOSS)
    assert set(found.parts) == BLOCKS[family]


@pytest.mark.parametrize(
    ("block", "names"),
    [
        (
            "attention.qkv",
            [
                "attention.query_key_value.weight",
                "attn.c_attn.bias",
                "qkv_proj.weight",
                "Wqkv.bias",
            ],
        ),
        ("attention.q", ["self_attn.q_proj.weight"]),
        ("attention.k", ["self_attn.k_proj.weight"]),
        ("attention.v", ["self_attn.v_proj.bias"]),
        (
            "attention.o",
            [
                "self_attn.o_proj.weight",
                "attention.dense.bias",
                "attn.c_proj.weight",
                "attn.out_proj.weight",
            ],
        ),
        (
            "mlp",
            ["mlp.c_proj.weight", "feed_forward.w1", "ffn.w2", "layers.0.fc1.bias", "fc2.weight"],
        ),
        ("head", ["lm_head.bias", "embed_out.bias"]),
        ("other", ["gain", "layers.0.scale"]),
    ],
)
def test_a_parameter_s_block_is_told_by_its_name(block: str, names: list[str]) -> None:
    assert {block_by_name(f"model.{name}", embedding=False) for name in names} == {block}
    assert {block_by_name(f"model.{name}", embedding=True) for name in names} == {"embedding"}


def test_shares_projections_and_the_last_layer_by_hand() -> None:
    """Two parts of a map of two tokens: (3, 0) + (0, 4) has the length 5."""
    found = Breakdown({"head": torch.tensor([[3.0, 0.0]]), "mlp": torch.tensor([[0.0, 4.0]])})
    assert found.force.tolist() == [[3, 4]]
    assert found.shares() == pytest.approx({"head": 0.6, "mlp": 0.8})
    assert found.projections() == pytest.approx({"head": 0.36, "mlp": 0.64})
    last = found.last_layer()
    assert (last.cosine, last.norm_ratio) == pytest.approx((0.6, 0.6))
    assert last.sign_agreement == 0.5
    assert not Breakdown({"mlp": torch.ones(1, 2)}).head.any()


def test_a_breakdown_is_of_the_force_map_that_was_asked_for() -> None:
    here = case("gpt_neox")
    moved = {name: 1.1 * weight for name, weight in here.policy.weights.items()}
    for more in ({}, {"update": ETA, "at": moved, "observed_temperature": 0.7}):
        found = breakdown(here.policy, OBSERVED, here.examples, DPO_LOSS, **more)
        own = {"update": 1.0, **more}
        assert relative(found.force, here.map(**own)) < 1e-10
        assert list(found.parts) == sorted(found.parts)


def test_a_small_memory_changes_no_part() -> None:
    here = case("llama_tied")
    plain = breakdown(here.policy, OBSERVED, here.examples, DPO_LOSS, update=ETA)
    ones = {name: torch.full_like(weight, ETA) for name, weight in here.policy.weights.items()}
    for update in (ETA, FrozenUpdate(ones, {})):
        small = breakdown(
            here.policy, OBSERVED, here.examples, DPO_LOSS, update=update, memory_bytes=2**20
        )
        assert set(small.parts) == set(plain.parts)
        for name, part in plain.parts.items():
            assert relative(small.parts[name], part) < 1e-10
        map_of = here.map(update=update, memory_bytes=2**20)
        assert relative(map_of, plain.force) < 1e-10
