"""Facts of tokens against their definitions on the whole distribution, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

import dynolab.likelihood.token_facts
from dynolab.likelihood.token_facts import TokenFacts, token_facts

V = 37


def by_definition(logits: torch.Tensor, token: int) -> dict[str, float]:
    """Every fact of one token from its π."""
    logp = logits.double().log_softmax(-1)
    pi, top = logp.exp(), int(logp.argmax())
    outside = torch.cat([logp[:top], logp[top + 1 :]]).logsumexp(0)
    others = torch.cat([logp[:token], logp[token + 1 :]])
    dense = torch.eye(len(pi)) - pi[None].expand(len(pi), -1)
    return {
        "logp": float(logp[token]),
        "rank": 1 + int((logp > logp[token]).sum()),
        "argmax": top,
        "argmax_logp": -float(torch.log1p((outside - logp[top]).exp())),
        "outside_mass": float(outside.exp()),
        "outside_logmass": float(outside),
        "entropy": float(torch.special.entr(pi).sum()),
        "energy": float(others.exp().sum()),
        "square": float(pi.square().sum()),
        "a_frobenius": float(torch.linalg.matrix_norm(dense)),
        "force_size": float(
            torch.hypot(others.exp().sum(), torch.linalg.vector_norm(others.exp()))
        ),
    }


@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.0, 0.3, 3.0, 30.0]))
@settings(max_examples=40, deadline=None)
def test_every_fact_is_its_definition(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(5, V, generator=generator, dtype=torch.float64)
    token = torch.randint(0, V, (5,), generator=generator)
    facts = token_facts(logits, token)
    for n in range(5):
        for name, value in by_definition(logits[n], int(token[n])).items():
            assert float(getattr(facts, name)[n]) == pytest.approx(value, rel=1e-9, abs=1e-14), name


@pytest.mark.parametrize("above", [5.0, 20.0, 40.0, 90.0])
def test_masses_beside_a_certain_token_keep_their_digits_in_float32(above: float) -> None:
    """One logit far above the others: subtracted from one, what is left would round to zero."""
    logits = torch.zeros(1, V)
    logits[0, 7] = above
    facts = token_facts(logits, torch.tensor([7]))
    expected = math.log(V - 1) - math.log(math.exp(above) + V - 1)
    assert facts.argmax.tolist() == [7]
    assert float(facts.outside_logmass) == pytest.approx(expected, rel=1e-6)
    for name in ("energy", "outside_mass", "force_size", "entropy"):
        # e^−90 is below float32's smallest full number: what is left of it is not minus nothing.
        relative = 1e-5 if above < 90 else 0.1
        truth = by_definition(logits[0], 7)[name]
        if name == "entropy":
            truth = math.exp(expected) * (1 + above) if above > 10 else truth
        assert float(getattr(facts, name)) == pytest.approx(truth, rel=relative), name


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, token = torch.randn(11, V), torch.randint(0, V, (11,))
    whole = token_facts(logits, token)
    monkeypatch.setattr(dynolab.likelihood.token_facts, "BLOCK", 3 * V)
    assert torch.equal(token_facts(logits, token).table(), whole.table())
    assert torch.equal(TokenFacts.of_table(whole.table()).entropy, whole.entropy)


def test_impossible_and_equal_tokens_are_no_nan() -> None:
    facts = token_facts(torch.tensor([[0.0, 0.0, -math.inf]]), torch.tensor([2]))
    assert float(facts.entropy) == pytest.approx(math.log(2))
    assert (float(facts.rank), float(facts.energy)) == (3, 1)
    alone = token_facts(torch.tensor([[0.0, -math.inf]]), torch.tensor([0]))
    assert (float(alone.logp), float(alone.entropy), float(alone.energy)) == (0, 0, 0)
    assert float(alone.outside_logmass) == -math.inf


def test_a_broken_model_shows() -> None:
    assert token_facts(torch.full((1, 4), math.nan), torch.tensor([1])).table().isnan().any()
