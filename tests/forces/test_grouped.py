"""Gradients of many groups of answers from one backward pass, against autograd group by group."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from dynolab.forces import PolicyFunction, View
from dynolab.forces.function.rules import subspace
from dynolab.forces.function.weights import flatten
from dynolab.forces.ledger.grouped import GroupedGradients
from tests.forces.families import build
from tests.forces.lora import TARGETS, adapted
from tests.forces.small_models import COMMON, encoded, neox

SEQUENCES = [encoded(seed, 3 + seed % 3, 4 + seed % 2) for seed in range(5)]
GROUPS = torch.tensor([0, 0, 2, 2, 3])


def mixtral() -> MixtralForCausalLM:
    """Experts, whose modules see no whole sequences."""
    torch.manual_seed(0)
    config = MixtralConfig(
        **COMMON, num_key_value_heads=2, num_local_experts=2, experts_implementation="eager"
    )
    return MixtralForCausalLM(config).double().eval()


FAMILIES = {
    **{name: partial(build, name) for name in ("gpt_neox", "llama_tied", "gpt2")},
    "mixtral": mixtral,
    **{f"lora {name}": partial(adapted, name) for name in TARGETS},
}


def trained_weights(policy: PolicyFunction) -> dict[str, torch.Tensor]:
    return {name: policy.weights[name] for name in sorted(subspace(policy))}


def one_by_one(policy: PolicyFunction, at: dict[str, torch.Tensor], weights: torch.Tensor):  # type: ignore[no-untyped-def]
    """Each group's gradient by a backward pass of its own."""
    rows = torch.zeros(4, sum(w.numel() for w in at.values()), dtype=policy.dtype)
    for number, (sequence, group) in enumerate(zip(SEQUENCES, GROUPS.tolist(), strict=True)):
        leaves = {name: w.clone().requires_grad_() for name, w in at.items()}
        logps = policy.logps(leaves, policy.batch([sequence]))
        gradients = torch.autograd.grad(
            weights[number] * logps.sum(), list(leaves.values()), materialize_grads=True
        )
        rows[group] += flatten(dict(zip(leaves, gradients, strict=True)))
    return rows


@pytest.mark.parametrize("family", FAMILIES)
def test_a_group_s_gradient_is_its_answers_alone(family: str) -> None:
    policy = PolicyFunction(FAMILIES[family](), torch.float64)
    at = trained_weights(policy)
    gradients = GroupedGradients.build(policy, at, SEQUENCES[:2])
    batch = policy.batch(SEQUENCES)
    weights = torch.linspace(-1, 2, len(SEQUENCES), dtype=torch.float64)

    def values(logits: torch.Tensor) -> torch.Tensor:
        return weights[batch.sequence] * View.realised(batch).logps(logits).squeeze(-1)

    rows = gradients.rows(at, 4)
    each = gradients.add(at, batch, values, GROUPS, into=rows)
    truth = one_by_one(policy, at, weights)
    torch.testing.assert_close(rows, truth, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(each, weights[batch.sequence] * policy.logps(at, batch))
    assert not rows[1].any(), "a group without sequences"
    alone = {name for name in at if family == "mixtral" and ".mlp." in name}
    assert gradients.generic == alone, "experts and their router see no whole sequences"


def test_a_module_that_acts_otherwise_is_left_to_autograd() -> None:
    """A scale behind a linear map's output, which its rule does not see."""
    model = neox()
    layer = model.gpt_neox.layers[0].mlp.dense_h_to_4h
    plain = layer.forward
    layer.forward = lambda value: plain(value) * (1 + layer.weight.sum())
    policy = PolicyFunction(model, torch.float64)
    at = trained_weights(policy)
    gradients = GroupedGradients.build(policy, at, SEQUENCES[:2])
    assert "gpt_neox.layers.0.mlp.dense_h_to_4h.weight" in gradients.generic
    batch = policy.batch(SEQUENCES)
    plain_values = View.realised(batch)
    rows = gradients.rows(at, 4)
    gradients.add(at, batch, lambda z: plain_values.logps(z).squeeze(-1), GROUPS, into=rows)
    torch.testing.assert_close(rows, one_by_one(policy, at, torch.ones(5)), rtol=1e-9, atol=1e-12)
