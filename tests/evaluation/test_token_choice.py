from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dynolab.comparisons.arm_table import (
    ADVANTAGE_RANK,
    ADVANTAGE_SIGN,
    RULE_RANK,
    RULE_SIGN,
    entropy_rule_figures,
)
from dynolab.evaluation.displacement import (
    completion_forces,
    entropy_forces,
    likelihood_displacement,
    one_update,
    right_answer_forces,
    token_choice,
)
from dynolab.forces import PolicyFunction
from dynolab.forces.ledger import measures
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import GRPOConfig, build_objective
from dynolab.results.groups import CompletionForce
from dynolab.training.config import OptimizerConfig
from tests.evaluation.test_displacement import MIXED, right_logps
from tests.forces.small_models import neox

CONFIG = GRPOConfig()
OBJECTIVE = build_objective(CONFIG)


def test_forces_are_products_of_gradients_token_by_token() -> None:
    model = neox()
    logits, trained = ResponseLogits(model), list(model.parameters())
    forces = right_answer_forces(PolicyFunction(model, torch.float64), OBJECTIVE, MIXED)
    right = torch.autograd.grad(right_logps(logits, MIXED).mean(), trained)
    read = token_logps(logits(MIXED.batch), MIXED.batch)
    weights = OBJECTIVE.token_weights(read.detach(), MIXED.batch)
    for token, force in enumerate(forces.tolist()):
        own = torch.autograd.grad(read[token], trained, retain_graph=True)
        product = sum((a * b).sum().item() for a, b in zip(own, right, strict=True))
        assert force == pytest.approx(weights[token].item() * product, rel=1e-9, abs=1e-12)


def test_they_add_up_to_what_a_small_step_does() -> None:
    model, rate = neox(), 1e-7
    step = one_update(OBJECTIVE, OptimizerConfig(name="sgd", learning_rate=rate))
    (measured,) = likelihood_displacement(ResponseLogits(model), [MIXED], step)
    rows = completion_forces(PolicyFunction(model, torch.float64), OBJECTIVE, MIXED)
    assert rate * sum(row.force for row in rows) == pytest.approx(measured.mean, rel=1e-4)
    assert [(row.correct, row.tokens) for row in rows] == [(True, 4), (False, 3), (True, 2)]
    assert [row.advantage for row in rows] == [0.5, -1.0, 0.5]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_entropy_s_forces_are_the_tokens_lines_and_add_up_to_a_small_step(temperature) -> None:
    """Against the ledger's functional, by autograd, and a step; the rule is −c (S − E_π S)."""
    model, batch = neox(), replace(MIXED.batch, temperature=temperature)
    policy, weights = PolicyFunction(model, torch.float64), dict(model.named_parameters())
    found = entropy_forces(policy, OBJECTIVE, batch)
    logits = ResponseLogits(model)(batch)
    mean = measures.entropy(logits / temperature, batch.token).mean()
    slope = torch.autograd.grad(mean, [*weights.values()], retain_graph=True)
    logps = token_logps(logits, batch)
    loss = OBJECTIVE.loss(logps, batch)
    pushes = -torch.autograd.grad(loss, logps, retain_graph=True)[0]
    for token in range(len(logps)):
        own = torch.autograd.grad(logps[token], [*weights.values()], retain_graph=True)
        product = sum((a * b).sum() for a, b in zip(own, slope, strict=True))
        torch.testing.assert_close(found.exact[token], pushes[token] * product, rtol=1e-8, atol=0)
    step = torch.autograd.grad(loss, [*weights.values()])
    moved = {
        name: weight.detach() - 1e-6 * change
        for (name, weight), change in zip(weights.items(), step, strict=True)
    }
    after = measures.entropy(policy.logits(moved, batch) / temperature, batch.token).mean()
    assert float(after - mean.detach()) == pytest.approx(1e-6 * float(found.exact.sum()), rel=1e-3)
    rows = completion_forces(policy, OBJECTIVE, replace(MIXED, batch=batch))
    assert sum(row.entropy for row in rows) == pytest.approx(float(found.exact.sum()))
    policies = torch.softmax(logits.detach() / temperature, -1)
    scores = policies * (policies.log() - (policies * policies.log()).sum(-1, keepdim=True))
    fall = scores[torch.arange(len(scores)), batch.token] - (policies * scores).sum(-1)
    torch.testing.assert_close(found.rule, -pushes * fall)
    assert sum(row.entropy_rule for row in rows) == pytest.approx(float(found.rule.sum()))


def test_rules_are_judged_by_rank_and_sign_question_by_question() -> None:
    def row(name: str, advantage: float, entropy: float, rule: float) -> CompletionForce:
        return CompletionForce(
            id=name,
            correct=advantage > 0,
            advantage=advantage,
            tokens=1,
            force=0.0,
            entropy=entropy,
            entropy_rule=rule,
        )

    rows = [row("a", 1.0, -2.0, -5.0), row("a", -0.5, 1.0, -1.0), row("a", -0.2, 3.0, 2.0)]
    rows += [row("b", 1.0, 2.0, -5.0), row("b", -1.0, 1.0, 1.0), row("b", 0.0, 9.0, 9.0)]
    figures = {name: figure.mean for name, figure in entropy_rule_figures(rows).items()}
    ranks, signs = (
        {RULE_RANK: 0.0, ADVANTAGE_RANK: -0.25},
        {RULE_SIGN: 7 / 12, ADVANTAGE_SIGN: 0.75},
    )
    assert figures == pytest.approx(ranks | signs)
    assert entropy_rule_figures([rows[0].model_copy(update={"entropy": None})]) == {}


def test_a_choice_is_compared_with_what_does_harm() -> None:
    policy = PolicyFunction(neox(), torch.float64)
    forces = right_answer_forces(policy, OBJECTIVE, MIXED)
    wrong = ~MIXED.correct[MIXED.batch.sequence]
    harmful = wrong & (forces < 0)
    advantage = MIXED.batch.advantage
    assert advantage is not None and 0 < harmful.sum() < wrong.sum()

    def choose(tokens: torch.Tensor):
        rewritten = replace(MIXED.batch, advantage=torch.where(tokens, advantage / 2, advantage))
        return token_choice(policy, OBJECTIVE, MIXED, rewritten)

    best, worst = choose(harmful), choose(wrong & ~harmful)
    assert (best.wrong, best.harmful) == (int(wrong.sum()), int(harmful.sum()))
    assert (best.chosen, best.both) == (best.harmful, best.harmful)
    assert best.harm_chosen == best.harm == pytest.approx(-forces[harmful].sum().item())
    assert best.help_chosen == worst.both == worst.harm_chosen == 0
    assert worst.help_chosen == pytest.approx(forces[wrong & ~harmful].sum().item())
