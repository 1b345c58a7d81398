"""A force map: its question, what moves, and its parts by block."""

from __future__ import annotations

from typing import Any

import numpy as np
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
)
from dynolab.forces.function.rules import last_layers, subspace
from dynolab.forces.map.factors import differing
from dynolab.forces.map.gram import TokenGradients, block_by_name
from dynolab.forces.map.problem import pose
from dynolab.objectives import SFTConfig, build_objective
from tests.forces.families import DPO_LOSS, ETA, FAMILIES, OBSERVED, build, case, map_by_tokens
from tests.forces.lora import adapted
from tests.forces.small_models import (
    encoded,
    pair,
    pairs,
    relative,
    with_reference,
)

SFT = build_objective(SFTConfig())


def tensor(found: ForceMap) -> torch.Tensor:
    return torch.tensor(found.force)


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
    generic = TokenGradients.build(policy, None, subspace(policy), None, OBSERVED[0]).generic
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


THREE_FAMILIES = ["gpt_neox", "llama_tied", "gpt2"]
WATCHED = [encoded(n, 4, 5) for n in range(2)]


def question(model: Any) -> tuple[PolicyFunction, dict[str, Any]]:
    policy = PolicyFunction(model, torch.float64)
    asked = {
        "observed": WATCHED,
        "updating": with_reference(model, pairs(2)),
        "objective": DPO_LOSS,
    }
    return policy, asked


def far(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@pytest.mark.parametrize("family", THREE_FAMILIES)
@pytest.mark.parametrize("preconditioned", [False, True])
def test_maps_in_parts_of_the_parameters_add_up_and_are_those_by_tokens(
    family: str, preconditioned: bool
) -> None:
    policy, asked = question(build(family, torch.float64))
    if preconditioned:
        generator = torch.Generator().manual_seed(0)
        scale = {n: torch.rand(w.shape, generator=generator) for n, w in policy.weights.items()}
        asked["update"] = FrozenUpdate(scale)
    last = last_layers(policy, 1)
    rest = set(policy.weights) - last
    assert last and rest
    maps = [force_map(policy, **asked, parameters=names).force for names in (last, rest)]
    plain = [map_by_tokens(policy, **asked, parameters=names).numpy() for names in (last, rest)]
    assert max(far(*both) for both in zip(maps, plain, strict=True)) < 1e-10
    assert far(maps[0] + maps[1], force_map(policy, **asked).force) < 1e-10


def test_signals_of_the_last_layer_stay_at_their_own_positions() -> None:
    """Without this the last layer would cost as much as several."""
    policy, asked = question(build("gpt_neox", torch.float64))
    posed = pose(
        policy,
        **asked,
        update=1.0,
        at=None,
        parameters=last_layers(policy, 1),
    )
    assert posed.gradients.tail is not None and not posed.gradients.generic
    local = {rule.weight for rule in posed.gradients.rules if rule.local}
    assert any("mlp" in str(name) for name in local)


def test_last_layers_of_adapters_are_their_own() -> None:
    policy, asked = question(adapted("llama_tied").eval())
    names = last_layers(policy, 1)
    found = force_map(policy, **asked, parameters=names)
    truth = map_by_tokens(policy, **asked, parameters=names).numpy()
    assert far(found.force, truth) < 1e-10
    assert all("lora" in name and ".1." in name for name in found.facts.subspace)


def test_gradients_are_told_apart_by_a_thousandth_of_their_size() -> None:
    truth = {name: torch.full((4,), 2.0) for name in ("close", "far", "missing")}
    computed = {"close": truth["close"] * 1.0005, "far": truth["far"] * 1.002}
    assert differing(computed, truth) == {"far", "missing"}


def test_what_does_not_move_is_refused() -> None:
    policy, asked = question(build("gpt_neox", torch.float64))
    with pytest.raises(ConfigError, match=r"^last_layers = 3: the model has 2"):
        last_layers(policy, 3)
    assert any(".layers.0." in name for name in last_layers(policy, 2))
    with pytest.raises(ConfigError, match=r"^parameters = \['x'\]: none of them is trained"):
        force_map(policy, **asked, parameters={"x"})
