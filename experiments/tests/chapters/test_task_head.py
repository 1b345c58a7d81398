"""Energy, direction and adaptation of features against short obvious ways."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch
from torch.nn import functional

from experiments.chapters.transfer.task_head import (
    adaptation,
    direction_consistency,
    energy,
    feature_forces,
    mismatch,
)
from experiments.tests.chapters.plain import drawn

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])


def test_energy_runs_from_zero_to_the_root_of_two() -> None:
    sure = 50 * functional.one_hot(LABELS, 3).double()
    assert energy(sure, LABELS) < 1e-9
    assert energy(sure, (LABELS + 1) % 3) == pytest.approx(math.sqrt(2))
    flat = torch.zeros(6, 3)
    assert energy(flat, LABELS) == pytest.approx(math.sqrt(4 / 9 + 2 / 9))


@pytest.mark.parametrize("deep", [False, True])
def test_forces_are_minus_the_loss_s_gradient_on_features(deep: bool) -> None:
    head = torch.nn.Linear(5, 3).double()
    if deep:
        head = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Tanh(), head).double()
    h = drawn(6, 5).requires_grad_()
    loss = functional.cross_entropy(head(h), LABELS, reduction="sum")
    (expected,) = torch.autograd.grad(-loss, h)
    torch.testing.assert_close(feature_forces(head, h.detach(), LABELS), expected)
    if not deep:
        p = head(h).softmax(-1)
        closed = (functional.one_hot(LABELS, 3) - p) @ head.weight
        torch.testing.assert_close(expected, closed.detach())


def test_consistency_is_the_mean_cosine_of_different_examples_of_a_class() -> None:
    forces = drawn(6, 4)
    means = []
    for own in (forces[LABELS == 0], forces[LABELS == 1]):  # of the third there is one alone
        pairs = list(permutations(own, 2))
        cosines = [float(functional.cosine_similarity(a, b, dim=0)) for a, b in pairs]
        means.append(sum(cosines) / len(cosines))
    consistency = direction_consistency(forces, LABELS, 3)
    assert float(consistency) == pytest.approx(sum(means) / len(means))


def test_mismatch_is_the_spread_within_classes_of_the_forces() -> None:
    forces = drawn(6, 4)
    classes = [forces[label == LABELS] for label in range(3)]
    within = sum(float((own - own.mean(0)).square().sum()) for own in classes)
    assert float(mismatch(forces, LABELS, 3)) == pytest.approx(
        within / float(forces.square().sum())
    )
    alike = functional.one_hot(LABELS, 3).double()
    assert float(mismatch(alike, LABELS, 3)) == pytest.approx(0, abs=1e-12)
    assert float(direction_consistency(alike, LABELS, 3)) == pytest.approx(1)


def test_features_that_follow_their_push_say_so() -> None:
    before, forces = drawn(6, 4), drawn(6, 4, seed=1)
    found = adaptation(before, before + 0.5 * forces, forces)
    assert found["followed"] == pytest.approx(1)
    assert found["distance"] == pytest.approx(0.5 * float(forces.norm(dim=1).mean()))
    same = adaptation(before, before, forces)
    assert same == {
        "distance": 0,
        "cosine": pytest.approx(1),
        "dot_product": pytest.approx(float(before.square().sum(1).mean())),
        "norm": pytest.approx(float(before.norm(dim=1).mean())),
        "followed": 0,
    }
