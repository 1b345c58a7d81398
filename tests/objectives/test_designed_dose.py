"""Doses that forces choose: the exact solution, and the loss under doses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.optimize import linprog

from dynolab.data.batches import REJECTED
from dynolab.likelihood.token_logps import token_logps
from dynolab.objectives import DPOConfig, build_objective
from dynolab.objectives.pairs import PairObjective, TokenEffects, designed_doses, largest_doses
from tests.objectives.test_forces import BY_NAME, batch_of, random_logits

PAIRED = {
    name: config
    for name, config in BY_NAME.items()
    if isinstance(build_objective(config), PairObjective)
}
NUMBERS = st.floats(-3, 3, allow_nan=False).map(lambda number: round(number, 3))
GROUPS = st.lists(st.tuples(NUMBERS, st.floats(0.01, 2)), min_size=1, max_size=8)


@given(gain=NUMBERS, groups=GROUPS)
@settings(max_examples=200, deadline=None)
def test_they_solve_the_linear_program(gain: float, groups: list[tuple[float, float]]) -> None:
    harms, pushes = torch.tensor(groups, dtype=torch.float64).unbind(1)
    doses = largest_doses(gain, harms, pushes)
    assert bool(((doses >= 0) & (doses <= 1)).all())
    best = linprog(-pushes.numpy(), A_ub=[harms.tolist()], b_ub=[gain], bounds=(0, 1))
    if best.status == 2:  # the sample falls at any dose
        assert doses.tolist() == [float(harm <= 0) for harm in harms]
        return
    assert float(harms @ doses) <= gain + 1e-9
    assert float(pushes @ doses) == pytest.approx(-best.fun, abs=1e-7)


@pytest.mark.parametrize("dose", [0.5, 2.0])
def test_a_dose_of_the_settings_is_that_of_rejected_tokens(dose: float) -> None:
    config = DPOConfig(negative_dose=dose)
    batch = batch_of(config)
    doses = build_objective(config).doses(torch.zeros(len(batch.token)), batch)
    assert doses is not None
    assert set(doses[batch.token_side == REJECTED].tolist()) == {dose}
    assert set(doses[batch.token_side != REJECTED].tolist()) == {1.0}


@pytest.mark.parametrize(
    ("gain", "harm", "dose"), [(1, 4, 0.25), (4, 1, 1), (-1, 1, 0), (-1, -2, 1), (0, 0, 1)]
)
def test_one_dose_is_gain_over_harm(gain: float, harm: float, dose: float) -> None:
    harms = torch.tensor([harm], dtype=torch.float64)
    assert largest_doses(gain, harms, torch.ones(1, dtype=torch.float64)).item() == dose


def parts() -> list[TokenEffects]:
    """Two micro-batches of three and two pairs of random effects, which fall at full dose."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for pairs in (3, 2):
        pair = torch.arange(pairs).repeat_interleave(4)
        rejected = torch.arange(4 * pairs) % 4 >= 2
        size = torch.rand(4 * pairs, generator=generator)
        effect = torch.where(rejected, -3 * size, size)
        push = torch.rand(pairs, generator=generator)[pair]
        made.append(TokenEffects(effect, push, rejected, pair))
    return made


def test_each_level_pushes_at_least_as_much_as_the_coarser_one_and_keeps_the_sample() -> None:
    made, pushed = parts(), []
    effect, push = (torch.cat([getattr(p, name) for p in made]) for name in ("effect", "push"))
    rejected = torch.cat([part.rejected for part in made])
    for per in ("batch", "pair", "token"):
        doses = torch.cat(designed_doses(made, per))
        assert bool((doses[~rejected] == 1).all())
        assert float(doses @ effect.double()) == pytest.approx(0, abs=1e-9)
        pushed.append(float((doses * push)[rejected].sum()))
    assert pushed == sorted(pushed)


def test_a_pair_s_tokens_share_their_dose_and_the_order_of_pairs_does_not_matter() -> None:
    made = parts()
    first, second = designed_doses(made, "pair")
    for doses, part in zip((first, second), made, strict=True):
        for pair in range(int(part.pair.max()) + 1):
            assert len(set(doses[part.rejected & (part.pair == pair)].tolist())) == 1
    again = designed_doses(made[::-1], "pair")
    torch.testing.assert_close(torch.cat(again[::-1]), torch.cat([first, second]))


@pytest.mark.parametrize("name", PAIRED)
def test_a_dose_scales_each_rejected_token_s_push_and_no_loss(name: str) -> None:
    objective, batch = build_objective(PAIRED[name]), batch_of(PAIRED[name])
    generator = torch.Generator().manual_seed(1)
    dose = torch.rand(len(batch.token), generator=generator, dtype=torch.float64)
    dosed = replace(batch, dose=torch.where(batch.token_side == REJECTED, dose, 1.0))
    logps = token_logps(random_logits(batch), batch).detach().requires_grad_()
    loss = objective.loss(logps, dosed)
    (slope,) = torch.autograd.grad(loss, logps)
    weights = objective.token_weights(logps.detach(), dosed)
    torch.testing.assert_close(weights, -slope)
    torch.testing.assert_close(weights, objective.token_weights(logps.detach(), batch) * dosed.dose)
    torch.testing.assert_close(loss, objective.loss(logps, batch))
