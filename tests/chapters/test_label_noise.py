"""Labels flipped on purpose: how many, to what, and what is refused."""

from __future__ import annotations

import pytest
import torch

from dynolab.chapters.classifiers.label_noise import check_labels, check_noise, flip_labels
from dynolab.chapters.classifiers.many import SGDConfig, batch_order
from dynolab.chapters.classifiers.seeds import seed_for
from dynolab.errors import ConfigError

LABELS = torch.arange(1000) % 10


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.4, 0.8, 0.999])
def test_exactly_the_share_is_flipped_and_never_to_the_same_class(noise: float) -> None:
    found = flip_labels(LABELS, 10, noise, seeded())
    assert int(found.wrong.sum()) == round(noise * 1000)
    assert found.given.min() >= 0
    assert found.given.max() < 10
    assert torch.equal(found.true, LABELS)


def test_wrong_labels_spread_evenly_over_the_other_classes() -> None:
    labels = torch.zeros(9000, dtype=torch.long)
    labels[:10] = torch.arange(10)
    found = flip_labels(labels, 10, 0.99, seeded())
    counts = torch.bincount(found.given[found.wrong & (labels == 0)], minlength=10)
    assert counts[0] == 0
    assert counts[1:].float().std() < 4 * (counts.sum() / 9) ** 0.5


@pytest.mark.parametrize("seed", range(5))
def test_wrong_labels_stand_anywhere_in_the_first_epoch_s_order(seed: int) -> None:
    wrong = flip_labels(LABELS, 10, 0.4, seeded(seed_for("wrong labels", seed))).wrong
    first = batch_order(1000, SGDConfig(epochs=1), seed)[:15]
    assert float(wrong[first].float().mean()) == pytest.approx(0.4, abs=0.1)
    assert seed_for("wrong labels", seed) != seed_for("outside predictions", seed)


def test_two_classes_are_swapped() -> None:
    labels = torch.tensor([0, 1, 0, 1])
    found = flip_labels(labels, 2, 0.5, seeded())
    assert torch.equal(found.given[found.wrong], 1 - labels[found.wrong])


def test_a_seed_decides_which_and_the_labels_stay_as_they_were() -> None:
    first, again, other = (flip_labels(LABELS, 10, 0.4, seeded(seed)).given for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(LABELS, torch.arange(1000) % 10)


@pytest.mark.parametrize("noise", [-0.1, 1.0, 1.5, float("nan"), float("inf")])
def test_noise_outside_zero_to_one_is_refused(noise: float) -> None:
    with pytest.raises(ConfigError, match=r"noise = .*must lie in \[0, 1\)"):
        check_noise(noise)


def test_labels_out_of_range_and_classes_without_examples_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"labels = 10: is out of range.*0 … 9"):
        check_labels(torch.tensor([0, 10]), 10)
    with pytest.raises(ConfigError, match="labels = -1: is out of range"):
        check_labels(torch.tensor([0, -1]), 2)
    with pytest.raises(ConfigError, match="no example of class 1"):
        flip_labels(torch.tensor([0, 2, 0]), 3, 0.2, seeded())
