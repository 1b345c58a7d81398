"""A force map: its question, what moves, and its parts by block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import (
    Breakdown,
    FrozenUpdate,
    PolicyFunction,
    breakdown,
    force_map,
)
from dynolab.forces.function.rules import last_layers, subspace
from dynolab.forces.map.factors import differing
from dynolab.forces.map.force_map import pose
from dynolab.forces.map.gram import TokenGradients, block_by_name
from dynolab.objectives import SFTConfig, build_objective
from tests.forces.families import DPO_LOSS, ETA, FAMILIES, OBSERVED, build, case, case_of
from tests.forces.lora import adapted
from tests.forces.small_models import encoded, pair, pairs, relative

SFT = build_objective(SFTConfig())


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
    here = case_of(model, count=1)
    assert relative(here.map(), here.map_by_tokens()) < 1e-10
    return TokenGradients.build(here.policy, None, subspace(here.policy), None, OBSERVED[0]).generic


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
    assert case_of(model, count=1).force_map().facts.subspace == [trained]


def test_a_budget_that_holds_no_token_is_refused_with_what_it_takes():
    policy = PolicyFunction(build("gpt2", torch.float32))
    with pytest.raises(ConfigError, match=r"memory_bytes = 1000: .* give at least"):
        force_map(policy, OBSERVED, [pair(1)], SFT, memory_bytes=1000)


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
    question = {"observed": OBSERVED, "updating": pairs(2), "objective": DPO_LOSS, **changed}
    with pytest.raises(ConfigError, match=message):
        force_map(policy, **question)


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
    # Little memory: in parts.
    found = breakdown(
        here.policy, OBSERVED, here.examples, DPO_LOSS, update=ETA, memory_bytes=2**20
    )
    assert set(found.parts) == BLOCKS[family]
    assert relative(found.force, here.map_by_tokens()) < 1e-10


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


@pytest.mark.parametrize("family", ["gpt_neox", "llama_tied", "gpt2"])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_maps_in_parts_of_the_parameters_add_up_and_are_those_by_tokens(
    family: str, preconditioned: bool
) -> None:
    here = case(family)
    update: float | FrozenUpdate = 1.0
    if preconditioned:
        generator = torch.Generator().manual_seed(0)
        weights = here.policy.weights
        scale = {n: torch.rand(w.shape, generator=generator) for n, w in weights.items()}
        update = FrozenUpdate(scale)
    last = last_layers(here.policy, 1)
    rest = set(here.policy.weights) - last
    assert last and rest
    maps = [here.map(update=update, parameters=names) for names in (last, rest)]
    for found, names in zip(maps, (last, rest), strict=True):
        assert relative(found, here.map_by_tokens(update=update, parameters=names)) < 1e-10
    assert relative(sum(maps), here.map(update=update)) < 1e-10


def test_signals_of_the_last_layer_stay_at_their_own_positions() -> None:
    """Without this the last layer would cost as much as several."""
    here = case("gpt_neox")
    last = last_layers(here.policy, 1)
    posed = pose(
        here.policy, OBSERVED, here.examples, DPO_LOSS, update=1.0, at=None, parameters=last
    )
    assert posed.gradients.tail is not None and not posed.gradients.generic
    local = {rule.weight for rule in posed.gradients.rules if rule.local}
    assert any("mlp" in str(name) for name in local)


def test_last_layers_of_adapters_are_their_own() -> None:
    here = case_of(adapted("llama_tied"))
    names = last_layers(here.policy, 1)
    found = here.force_map(parameters=names)
    assert relative(torch.tensor(found.force), here.map_by_tokens(parameters=names)) < 1e-10
    assert all("lora" in name and ".1." in name for name in found.facts.subspace)


def test_gradients_are_told_apart_by_a_thousandth_of_their_size() -> None:
    truth = {name: torch.full((4,), 2.0) for name in ("close", "far", "missing")}
    computed = {"close": truth["close"] * 1.0005, "far": truth["far"] * 1.002}
    assert differing(computed, truth) == {"far", "missing"}


def test_what_does_not_move_is_refused(policy: PolicyFunction) -> None:
    with pytest.raises(ConfigError, match=r"^last_layers = 3: the model has 2"):
        last_layers(policy, 3)
    assert any(".layers.0." in name for name in last_layers(policy, 2))
    with pytest.raises(ConfigError, match=r"^parameters = \['x'\]: none of them is trained"):
        force_map(policy, OBSERVED, pairs(1), SFT, parameters={"x"})
