from __future__ import annotations

import math

import pytest
import torch

from dynolab.data.batches import collate
from dynolab.forces import (
    response_terms,
    step_terms,
    token_terms,
)
from dynolab.forces.step.split import record_batch
from dynolab.objectives import DPOConfig, SFTConfig, build_objective
from dynolab.objectives.base import force
from dynolab.training.config import OptimizerConfig
from tests.forces.small_models import VOCABULARY, encoded, neox, recorded

V = 7


def some_logits(temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(20, V, generator=generator, dtype=torch.float64) / temperature
    return logits, torch.randint(V, (20,), generator=generator)


@pytest.mark.parametrize("temperature", [0.05, 1.0, 100.0])
def test_terms_are_those_of_the_dense_matrices(temperature):
    logits, token = some_logits(temperature)
    rates = torch.linspace(-2, 2, len(token), dtype=torch.float64)
    terms = token_terms(logits, token, rates)
    one = torch.eye(V, dtype=torch.float64)
    for n, (z, y) in enumerate(zip(logits, token, strict=True)):
        pi = z.softmax(-1)
        dense = one - torch.ones(V, 1, dtype=torch.float64) @ pi[None]
        g = rates[n] * (pi - one[y])
        truth = {
            "logp": pi[y].log(),
            "a_frobenius": torch.linalg.matrix_norm(dense),
            "a_spectral": torch.linalg.matrix_norm(dense, ord=2),
            "energy": 1 - pi[y],
            "force_size": (pi - one[y]).norm(),
            "entropy": torch.special.entr(pi).sum(),
            "g_norm": g.norm(),
        }
        for name, value in truth.items():
            got = float(getattr(terms, name)[n])
            assert got == pytest.approx(float(value), rel=1e-9, abs=1e-13), name


def test_a_nearly_certain_token_keeps_its_digits_in_float32():
    """With one logit 30 above the others, 1 − π_y = (V − 1) e^{−30}, far below float32's ε."""
    logits = torch.tensor([[30.0, *[0.0] * (V - 1)]])
    terms = token_terms(logits, torch.tensor([0]))
    small = (V - 1) * math.exp(-30)
    assert terms.energy.dtype == torch.float32
    expected = small, small * math.sqrt(1 + 1 / (V - 1)), small * (30 + 1)
    for value, truth in zip((terms.energy, terms.force_size, terms.entropy), expected, strict=True):
        assert float(value) == pytest.approx(truth, rel=1e-5, abs=0)


def test_an_impossible_token_is_no_nan():
    terms = token_terms(torch.tensor([[0.0, 0.0, float("-inf")]]), torch.tensor([2]))
    values = [float(value) for value in (terms.energy, terms.entropy, terms.force_size)]
    assert values == pytest.approx([1, math.log(2), math.sqrt(1.5)])


def test_responses_terms_know_neither_batch_nor_padding(policy):
    sequences = [encoded(1), encoded(2, 6, 3), encoded(3, 1, 1), encoded(4, 2, 7)]
    together = response_terms(policy, sequences)
    alone = response_terms(policy, sequences, batch_tokens=1)
    for one, other, sequence in zip(together, alone, sequences, strict=True):
        assert len(one.energy) == sequence.response_length
        for name, values in vars(one).items():
            assert torch.allclose(values, getattr(other, name), atol=1e-12), name
        logits = policy.logits({}, collate([sequence], 0))
        direct = token_terms(logits, torch.tensor(sequence.ids[sequence.prompt_length :]))
        assert torch.allclose(one.entropy, direct.entropy, atol=1e-12)
        assert torch.all(one.learning_rate == 1)


@pytest.mark.parametrize("objective", [DPOConfig(), SFTConfig()], ids=["dpo", "sft"])
def test_a_step_s_terms_are_those_of_the_force_that_trained(policy, objective):
    record = recorded(neox(), OptimizerConfig(name="sgd", learning_rate=1e-2), objective, count=4)
    made = step_terms(record, policy)
    built = build_objective(record.facts.objective)
    batch = record_batch(record, policy, range(len(record.examples)))
    logits = policy.logits(policy.cast(record.before), batch).requires_grad_()
    loss = built.loss(logits.log_softmax(-1).gather(-1, batch.token[:, None])[:, 0], batch)
    (g,) = torch.autograd.grad(loss, logits)
    sizes = torch.cat([one.terms.g_norm for one in made])
    assert torch.allclose(sizes, g.norm(dim=-1), rtol=1e-9)
    rates = torch.cat([one.terms.learning_rate for one in made])
    assert torch.allclose(force(rates, logits.detach(), batch), g, atol=1e-14)

    sides = [
        (example.id, side, response.ids[response.prompt_length :])
        for example in record.examples
        for side, response in (("chosen", example.chosen), ("rejected", example.rejected))
        if side == "chosen" or isinstance(objective, DPOConfig)
    ]
    assert [(u.updating.id, u.updating.side, u.updating.tokens) for u in made] == sides
    for one in made:
        assert bool((one.terms.learning_rate > 0).all()) == (one.updating.side == "chosen")
        assert float(one.terms.a_frobenius.max()) <= math.sqrt(2 * VOCABULARY - 2)


def test_a_step_s_terms_know_no_micro_batches(policy):
    record = recorded(neox(), count=4)
    whole, small = step_terms(record, policy), step_terms(record, policy, batch_tokens=1)
    assert [terms.updating for terms in whole] == [terms.updating for terms in small]
    for one, other in zip(whole, small, strict=True):
        assert torch.allclose(one.terms.g_norm, other.terms.g_norm, atol=1e-14)
