from __future__ import annotations

import pytest
import torch

from dynolab.data.batches import collate
from dynolab.forces import PolicyFunction, breakdown, force_map
from dynolab.objectives import DPO, SFT, DPOConfig, SFTConfig
from tests.forces.families import FAMILIES, build
from tests.forces.small_models import encoded, pair, pairs, relative, with_reference

OBSERVED = [encoded(1, 4, 6), encoded(2, 5, 3)]
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
def test_parts_add_up_to_the_map(family):
    model = build(family)
    policy = PolicyFunction(model, torch.float64)
    examples, objective = with_reference(model, pairs(2)), DPO(DPOConfig())
    found = breakdown(policy, OBSERVED, examples, objective, memory_bytes=2**20)
    whole = force_map(policy, OBSERVED, examples, objective, route="columns")
    assert set(found.parts) == BLOCKS[family]
    assert relative(found.force, torch.tensor(whole.force)) < 1e-10
    assert sum(found.projections().values()) == pytest.approx(1)
    assert found.shares()["mlp"] == pytest.approx(
        float(found.parts["mlp"].norm() / found.force.norm())
    )


def test_a_part_is_the_map_of_its_parameters_alone():
    """By the column route on a model in which nothing else trains."""
    model = build("qwen2")
    policy = PolicyFunction(model, torch.float64)
    example, objective = pair(3), SFT(SFTConfig())
    found = breakdown(policy, OBSERVED, [example], objective)
    for block, word in (("attention.k", "k_proj"), ("norms", "norm"), ("mlp", "mlp")):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(word in name)
        alone = force_map(policy, OBSERVED, [example], objective, route="columns")
        assert relative(found.parts[block], torch.tensor(alone.force)) < 1e-10


@pytest.mark.parametrize("family", ["gpt_neox", "llama_tied"])
def test_the_head_s_part_is_the_last_layer_s_formula(family):
    """`F_head = −η (H_o H_uᵀ) ∘ [(E − Π) Gᵀ]`, from hidden states alone."""
    model = build(family)
    policy = PolicyFunction(model, torch.float64)
    example, eta = pair(3), 0.2
    found = breakdown(policy, OBSERVED[:1], [example], SFT(SFTConfig()), update=eta)
    (h_o, e_o), (h_u, e_u) = (
        last_layer(model, policy, one) for one in (OBSERVED[0], example.chosen)
    )
    truth = -eta * (h_o @ h_u.T) * (e_o @ (-e_u).T)
    assert relative(found.parts["head"], truth) < 1e-10
    seen = found.last_layer()
    assert seen.norm_ratio == pytest.approx(found.shares()["head"])
    assert seen.cosine == pytest.approx(
        float((truth * found.force).sum() / truth.norm() / found.force.norm())
    )
    assert 0 <= seen.sign_agreement <= 1


@torch.no_grad()
def last_layer(model, policy, one):  # type: ignore[no-untyped-def]
    """Hidden states before the head and E − Π of a response."""
    batch = collate([one], 0)
    with policy.differentiable():
        hidden = model.base_model(
            input_ids=batch.input_ids, position_ids=batch.position_ids
        ).last_hidden_state[0, batch.position]
    logits = policy.logits({}, batch)
    return hidden, torch.eye(logits.shape[1], dtype=torch.float64)[batch.token] - logits.softmax(-1)
