from __future__ import annotations

import pytest

from dynolab.forces import breakdown
from tests.forces.families import DPO_LOSS, FAMILIES, OBSERVED, case

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
