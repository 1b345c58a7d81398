"""Learning paths: the zig-zag score, own pulls, the Gaussian toy, and what a study follows."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from experiments.chapters.classification.paths import (
    GaussianConfig,
    Task,
    base_difficulty,
    filtered,
    follow,
    gaussian_toy,
    groups_of,
    own_changes,
    zigzag,
)
from experiments.chapters.classifiers.many import ManyModels, SGDConfig
from experiments.chapters.vision import build_classifier

BUILD = partial(build_classifier, "mlp")


def way(*points: tuple[float, ...]) -> Tensor:
    """A path through points, finely walked."""
    corners = torch.tensor(points, dtype=torch.float64)
    steps = torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    legs = [a + steps * (b - a) for a, b in pairwise(corners)]
    return torch.cat(legs)


MIDDLE, FIRST, SECOND = (1 / 3, 1 / 3, 1 / 3), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)


def score(path: Tensor, label: int, smoothing: float = 0.0) -> float:
    return float(zigzag(path[:, None], torch.tensor([label]), smoothing)[0])


def test_a_straight_path_scores_nothing_wherever_it_stops() -> None:
    assert score(way(MIDDLE, FIRST), 0) == pytest.approx(0, abs=1e-9)
    assert score(way(MIDDLE, FIRST)[:100], 0) == pytest.approx(0, abs=1e-9)


def test_a_detour_scores_its_length() -> None:
    over = math.dist(SECOND, FIRST)  # on both ways there is the way to a corner, too
    assert score(way(MIDDLE, SECOND, FIRST), 0) == pytest.approx(over)
    # A label that was never learned scores as one that was learned late.
    assert score(way(MIDDLE, SECOND), 0) == pytest.approx(over)


def test_the_filter_takes_jitter_out_of_a_path() -> None:
    generator = torch.Generator().manual_seed(0)
    path = way(MIDDLE, FIRST)[::10]
    shaken = (path + 0.05 * torch.randn(path.shape, generator=generator)).clamp(0, 1)
    assert score(shaken, 0, 0.5) < 0.6 * score(shaken, 0)


def test_the_filter_is_an_average_that_leaves_out_what_is_unknown() -> None:
    path = torch.tensor([[math.nan], [1.0], [math.nan], [0.0]])
    assert filtered(path, 0.5)[1:].flatten().tolist() == [1.0, 1.0, 0.5]
    assert filtered(path, 0.5)[0].isnan().all()
    full = torch.rand(5, 2, 3)
    expected = full[0]
    for p in full[1:]:
        expected = 0.8 * expected + 0.2 * p
    assert torch.allclose(filtered(full, 0.8)[-1], expected)


def test_unknown_times_leave_a_path_as_it_was() -> None:
    path = way(MIDDLE, SECOND, FIRST)
    holes = path.clone()
    holes[[*range(5), *range(50, 60)]] = math.nan
    assert score(holes, 0) == pytest.approx(score(path[5:], 0))


def test_an_own_change_is_what_a_step_on_the_example_alone_does() -> None:
    many = ManyModels([BUILD((6,), 3, seed).double() for seed in range(2)])
    x = torch.rand(2, 4, 6, dtype=torch.float64)
    labels = torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]])
    changes = own_changes(many, many.weights, x, labels, 0.5)
    for n, i in product(range(2), range(4)):
        model: nn.Module = many.model(n)
        weights = {k: p.detach().requires_grad_() for k, p in model.named_parameters()}
        loss = nn.functional.cross_entropy(
            functional_call(model, weights, (x[n, i : i + 1],)), labels[n, i : i + 1]
        )
        gradients = torch.autograd.grad(loss, list(weights.values()))
        after = {k: w - 0.5 * g for (k, w), g in zip(weights.items(), gradients, strict=True)}
        moved = loss - nn.functional.cross_entropy(
            functional_call(model, after, (x[n, i : i + 1],)), labels[n, i : i + 1]
        )
        assert float(changes[n, i]) == pytest.approx(moved.item(), rel=1e-9)


def test_the_toy_s_truth_is_bayes_rule() -> None:
    config = GaussianConfig(dimensions=2, variance=0.5, examples=4_000)
    toy = gaussian_toy(config, seed=3)
    assert torch.allclose(toy.truth.sum(1), torch.ones(4_000))
    # Of the examples of which p* says so much, as many have the label.
    sure = toy.truth.max(1).values
    right = (toy.truth.argmax(1) == toy.labels).float()
    for low, high in ((0.4, 0.6), (0.6, 0.8), (0.8, 0.95)):
        some = (sure >= low) & (sure < high)
        if int(some.sum()) > 100:
            spread = 4 * 0.5 / math.sqrt(int(some.sum()))
            assert abs(float(right[some].mean() - sure[some].mean())) < spread
    again = gaussian_toy(config, seed=3)
    assert torch.equal(again.inputs, toy.inputs)
    assert not torch.equal(gaussian_toy(config, seed=4).inputs, toy.inputs)


def test_groups_go_by_distance_from_the_truth() -> None:
    truth = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.99, 0.01], [0.7, 0.3]])
    task = Task(torch.rand(4, 2), torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 0, 0]), truth)
    assert {name: index.tolist() for name, index in groups_of(task).items()} == {
        "easy": [2],
        "medium": [0],
        "hard": [1],
        "mislabelled": [3],
    }
    assert float(base_difficulty(truth, task.labels)[3]) == pytest.approx(math.sqrt(2) * 0.7)


@pytest.mark.parametrize("own_inputs", [False, True])
def test_seeds_are_followed_side_by_side_as_they_are_alone(own_inputs: bool) -> None:
    config = SGDConfig(learning_rate=0.2, batch_size=4, epochs=3)
    toys = [gaussian_toy(GaussianConfig(dimensions=5, examples=12), seed) for seed in (0, 1)]
    inputs = [toy.inputs if own_inputs else toys[0].inputs for toy in toys]
    tasks = [
        Task(x, toy.labels, toy.labels, toy.truth) for x, toy in zip(inputs, toys, strict=True)
    ]

    def models(seeds: list[int]) -> ManyModels:
        return ManyModels([BUILD((5,), 3, seed) for seed in seeds])

    both = follow(models([0, 1]), tasks, 3, config, [0, 1])
    assert [values.shape for values in both] == [(4, 2, 12, 3), (3, 2, 12)]
    for n in range(2):
        alone = follow(models([n]), tasks[n : n + 1], 3, config, [n])
        for together, own in zip(both, alone, strict=True):
            assert torch.allclose(together[:, n], own[:, 0], atol=1e-5)
