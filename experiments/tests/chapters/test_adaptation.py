"""Two factorisations of one joint, their steps, and which adapts faster after an intervention."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from experiments.chapters.supervision.adaptation import (
    AdaptationConfig,
    Learner,
    compare_adaptation,
)
from experiments.chapters.supervision.claims import assess_adaptation, best_adaptation, with_delay

SEEDS = tuple(range(100, 105))


def simplex(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).softmax(-1)


def joints() -> tuple[torch.Tensor, torch.Tensor]:
    """p(a, b) before and after another p(a) took the place of the first."""
    mechanism = simplex(1, 3, 3, seed=0)
    return tuple(simplex(1, 3, seed=seed)[..., None] * mechanism for seed in (1, 2))  # type: ignore[return-value]


@pytest.mark.parametrize("turned", [False, True])
def test_a_learner_s_steps_are_those_of_gradient_descent(turned: bool) -> None:
    joint = joints()[0].mT if turned else joints()[0]
    learner = Learner.of(joint, 2)
    torch.testing.assert_close(learner.logp(), joint.log().expand(2, -1, -1, -1))
    rates = torch.tensor([0.1, 0.7], dtype=torch.float64)
    examples = [(0, 2), (1, 1), (0, 0)]
    for x, y in examples:
        learner.learn(torch.tensor([x]), torch.tensor([y]), rates)
    for place, rate in enumerate(rates.tolist()):
        start = Learner.of(joint, 1)
        tables = [start.marginal[0, 0].requires_grad_(), start.conditional[0, 0].requires_grad_()]
        for x, y in examples:
            loss = -(tables[0].log_softmax(-1)[x] + tables[1][x].log_softmax(-1)[y])
            gradients = torch.autograd.grad(loss, tables)
            tables = [
                (table - rate * gradient).detach().requires_grad_()
                for table, gradient in zip(tables, gradients, strict=True)
            ]
        torch.testing.assert_close(learner.marginal[place, 0], tables[0].detach())
        torch.testing.assert_close(learner.conditional[place, 0], tables[1].detach())


def test_only_the_causal_learner_s_mechanism_has_nothing_to_learn() -> None:
    before, after = joints()
    sizes = []
    for joint, new in ((before, after), (before.mT, after.mT)):
        conditional = Learner.of(joint, 1).conditional.clone().requires_grad_()
        loss = -(new * conditional.log_softmax(-1)).sum()
        (gradient,) = torch.autograd.grad(loss, conditional)
        sizes.append(float(gradient.norm()))
    assert sizes[0] < 1e-12 < 1e-2 < sizes[1]


def test_both_begin_at_the_divergence_of_the_two_causes() -> None:
    config = AdaptationConfig(values=3, problems=1, examples=2, learning_rates=(0.1,))
    rows = with_delay(pd.DataFrame(compare_adaptation(config, [7])))
    causal, other = rows.kl
    assert causal[0] == pytest.approx(other[0])
    assert len(causal) == 3
    assert causal[1] != pytest.approx(other[1])
    assert rows.delay[0] == pytest.approx((causal[1] + causal[2]) / 2)


def test_the_causal_factorisation_adapts_faster() -> None:
    config = AdaptationConfig(problems=20, examples=40)
    rows = pd.DataFrame(compare_adaptation(config, SEEDS))
    assert len(rows) == 2 * 4 * len(SEEDS)
    (verdict,) = assess_adaptation(rows)
    assert verdict.outcome == "holds"


def test_each_learner_is_judged_at_its_fastest_rate() -> None:
    columns = ("direction", "learning_rate", "seed", "kl")
    rows = [
        ("causal", 0.1, 1, (1.0, 0.5)),
        ("causal", 0.1, 0, (1.0, 0.4)),
        ("causal", 1, 0, (1.0, 0.1)),
        ("causal", 1, 1, (1.0, 0.9)),
        ("anti-causal", 1, 0, (1.0, 0.0)),
    ]
    best = best_adaptation(pd.DataFrame(rows, columns=columns), "causal")
    assert best[["learning_rate", "seed"]].values.tolist() == [[0.1, 0], [0.1, 1]]
