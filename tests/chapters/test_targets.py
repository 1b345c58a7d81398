"""Targets, the distillation loss and the filter's table, each against an obvious way."""

from __future__ import annotations

import pytest
import torch

from dynolab.chapters.classifiers.many import cross_entropy
from dynolab.chapters.classifiers.targets import (
    FilterTable,
    disagreement,
    distillation,
    one_hot,
    smoothed,
)
from dynolab.errors import ConfigError


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_the_force_of_distillation_is_its_closed_form(temperature: float) -> None:
    z, q = drawn(5, 7).requires_grad_(), drawn(5, 7, seed=1).softmax(-1)
    (gradient,) = torch.autograd.grad(distillation(z, q, temperature) * len(z), z)
    expected = 2 * temperature * ((z / temperature).softmax(-1) - q)
    torch.testing.assert_close(gradient, expected)


def test_distillation_is_torch_s_divergence_and_zero_at_the_teacher() -> None:
    z, teacher = drawn(6, 4), drawn(6, 4, seed=1)
    q = (teacher / 3).softmax(-1)
    expected = 2 * 9 * torch.nn.functional.kl_div((z / 3).log_softmax(-1), q, reduction="batchmean")
    torch.testing.assert_close(distillation(z, q, 3.0), expected)
    assert distillation(teacher, q, 3.0).abs() < 1e-12


def test_on_one_hot_targets_distillation_is_twice_cross_entropy() -> None:
    z, q = drawn(6, 4), one_hot(torch.tensor([0, 1, 2, 3, 0, 1]), 4).double()
    torch.testing.assert_close(distillation(z, q), 2 * cross_entropy(z, q))


def test_smoothed_labels_are_torch_s() -> None:
    z, labels = drawn(6, 4).float(), torch.tensor([0, 1, 2, 3, 0, 1])
    expected = torch.nn.functional.cross_entropy(z, labels, label_smoothing=0.3)
    torch.testing.assert_close(cross_entropy(z, smoothed(labels, 4, 0.3)), expected)
    with pytest.raises(ConfigError, match=r"smoothing = 1\.0"):
        smoothed(labels, 4, 1.0)


def test_the_table_averages_probabilities_as_the_rule_written_out_does() -> None:
    generator = torch.Generator().manual_seed(0)
    table = FilterTable(2, 6, 3, decay=0.9)
    by_hand: dict[tuple[int, int], torch.Tensor] = {}
    for _ in range(12):
        index = torch.stack([torch.randperm(6, generator=generator)[:2] for _ in range(2)])
        p = torch.randn(2, 2, 3, generator=generator).softmax(-1)
        table.visit(index, p)
        for model in range(2):
            for place in range(2):
                key = model, int(index[model, place])
                old, new = by_hand.get(key), p[model, place]
                by_hand[key] = new if old is None else 0.9 * old + 0.1 * new
    for (model, example), q in by_hand.items():
        torch.testing.assert_close(table.q[model, example], q)
    visited = table.q.sum(-1) > 0
    torch.testing.assert_close(table.q.sum(-1)[visited], torch.ones(int(visited.sum())))


def test_an_example_that_was_never_visited_keeps_its_label() -> None:
    table = FilterTable(3, 2)
    table.visit(torch.tensor([1]), torch.tensor([[0.2, 0.8]]))
    hard = one_hot(torch.tensor([0, 0, 1]), 2)
    assert table.targets(hard).tolist() == [
        [1.0, 0.0],
        [pytest.approx(0.2), pytest.approx(0.8)],
        [0.0, 1.0],
    ]


def test_disagreement_is_what_the_table_gives_to_other_labels() -> None:
    q = torch.tensor([[0.2, 0.8], [0.9, 0.1]])
    found = disagreement(q, torch.tensor([0, 0]))
    torch.testing.assert_close(found, torch.tensor([0.8, 0.1]))
