from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dynolab.evaluation.displacement import (
    completion_forces,
    likelihood_displacement,
    one_update,
    right_answer_forces,
    token_choice,
)
from dynolab.forces import PolicyFunction
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import GRPOConfig, build_objective
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
