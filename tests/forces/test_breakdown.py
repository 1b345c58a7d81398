from __future__ import annotations

import pytest
import torch

from dynolab.forces import Breakdown, FrozenUpdate, breakdown
from dynolab.forces.map.breakdown import block_by_name
from tests.forces.families import DPO_LOSS, ETA, FAMILIES, OBSERVED, case
from tests.forces.small_models import relative

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
def test_every_part_has_its_name_and_its_share(family):
    here = case(family)
    found = breakdown(here.policy, OBSERVED, here.examples, DPO_LOSS)
    assert set(found.parts) == BLOCKS[family]
    assert sum(found.projections().values()) == pytest.approx(1)
    assert found.shares()["mlp"] == pytest.approx(
        float(found.parts["mlp"].norm() / found.force.norm())
    )


def test_the_last_layer_is_compared_with_the_whole():
    here = case("llama_tied")
    found = breakdown(here.policy, OBSERVED[:1], here.examples, DPO_LOSS)
    whole, head, seen = found.force, found.parts["head"], found.last_layer()
    assert seen.norm_ratio == pytest.approx(found.shares()["head"])
    assert seen.cosine == pytest.approx(float((head * whole).sum() / head.norm() / whole.norm()))
    assert seen.sign_agreement == pytest.approx(float((head * whole > 0).double().mean()))


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
