"""Sketches of force maps: right on average, and as uncertain as they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dynolab.errors import ConfigError
from dynolab.forces import FrozenUpdate, PolicyFunction, force_map
from dynolab.forces.function.layers import last_layers
from dynolab.forces.map.sketch import sketch_forces
from dynolab.forces.map.totals import block_sums
from dynolab.objectives import DPO, DPOConfig
from tests.forces.families import build
from tests.forces.small_models import encoded, pairs, with_reference

DIRECTIONS, SEEDS = 32, range(100, 112)


@pytest.fixture(scope="module", params=["all", "last layer, preconditioned"])
def asked(request: pytest.FixtureRequest) -> tuple[PolicyFunction, dict[str, Any]]:
    model = build("gpt_neox", torch.float64)
    policy = PolicyFunction(model, torch.float64)
    question: dict[str, Any] = {
        "observed": [encoded(n, 4, 3 + n) for n in range(2)],
        "updating": with_reference(model, pairs(2)),
        "objective": DPO(DPOConfig()),
        "update": 0.1,
    }
    if request.param != "all":
        generator = torch.Generator().manual_seed(0)
        scale = {n: torch.rand(w.shape, generator=generator) for n, w in policy.weights.items()}
        names = last_layers(policy, 1)
        question |= {"parameters": names, "update": FrozenUpdate(scale, {})}
    return policy, question


def test_sketches_are_unbiased_and_their_errors_cover(
    asked: tuple[PolicyFunction, dict[str, Any]],
) -> None:
    policy, question = asked
    exact = force_map(policy, **question)
    sums = block_sums(exact.force, exact.observed_offsets, exact.updating_offsets)
    made = [sketch_forces(policy, **question, directions=DIRECTIONS, seed=s) for s in SEEDS]
    for truth, estimates in (
        (np.array(exact.force), [one.tokens() for one in made]),
        (sums, [one.responses() for one in made]),
    ):
        values = np.stack([one.value.numpy() for one in estimates])
        errors = np.stack([one.standard_error.numpy() for one in estimates])
        covered = (np.abs(values - truth) <= 2 * errors).mean()
        assert 0.9 < covered < 0.99
        # The mean of all seeds lies as near as their errors say, entry by entry and in the mean.
        z = (values.mean(0) - truth) / (np.sqrt((errors**2).sum(0)) / len(SEEDS))
        assert np.abs(z).max() < 5 and 0.3 < np.square(z).mean() < 3


def test_more_directions_are_more_certain_and_a_seed_is_one_sketch(
    asked: tuple[PolicyFunction, dict[str, Any]],
) -> None:
    policy, question = asked
    few, again, many = (
        sketch_forces(policy, **question, directions=k, seed=1, batch_tokens=tokens).tokens()
        for k, tokens in ((32, 4096), (32, 8), (128, 4096))
    )
    torch.testing.assert_close(few.value, again.value)
    ratio = float(many.standard_error.norm() / few.standard_error.norm())
    assert ratio == pytest.approx((32 / 128) ** 0.5, rel=0.25)


def test_one_direction_is_refused(asked: tuple[PolicyFunction, dict[str, Any]]) -> None:
    policy, question = asked
    with pytest.raises(ConfigError, match="directions = 1: give two or more"):
        sketch_forces(policy, **question, directions=1)
