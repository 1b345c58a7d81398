"""Many models trained at once, which become what each would have become alone; labels flipped on
purpose, soft targets, the distillation loss and the filter's table."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from torch import nn

from dynolab.errors import ConfigError, DynolabError
from experiments.chapters.classifiers.labels import (
    FilterTable,
    check_labels,
    disagreement,
    distillation,
    flip_labels,
    one_hot,
    seeded_flip,
    smoothed,
)
from experiments.chapters.classifiers.many import (
    ManyModels,
    SGDConfig,
    batch_order,
    cross_entropy,
    seed_for,
    train_many,
)
from experiments.chapters.vision import build_classifier
from experiments.tests.chapters.plain import drawn, train

CONFIG = SGDConfig(learning_rate=0.2, momentum=0.9, weight_decay=1e-2, batch_size=4, epochs=2)
X = torch.rand(10, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def models(name: str = "lenet", count: int = 3) -> list[nn.Module]:
    return [build_classifier(name, (1, 8, 8), 5, seed=n).double() for n in range(count)]  # type: ignore[arg-type]


def targets(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(10, 5, dtype=torch.float64, generator=generator).softmax(-1)


@pytest.mark.parametrize("name", ["lenet", "mlp", "transformer"])
@pytest.mark.parametrize("own_order", [False, True])
@pytest.mark.parametrize("own_targets", [False, True])
def test_each_model_becomes_what_it_becomes_alone(
    name: str, own_order: bool, own_targets: bool
) -> None:
    many = ManyModels(models(name))
    orders = [batch_order(10, CONFIG, seed=n if own_order else 0) for n in range(3)]
    wanted = [targets(n if own_targets else 0) for n in range(3)]
    rates = torch.tensor([0.1, 0.2, 0.05])
    for _ in train_many(
        many,
        X,
        torch.stack(wanted) if own_targets else wanted[0],
        torch.stack(orders) if own_order else orders[0],
        CONFIG,
        learning_rates=rates,
    ):
        pass
    for n, model in enumerate(models(name)):
        own = CONFIG.model_copy(update={"learning_rate": float(rates[n])})
        train(model, X, wanted[n], orders[n], own)
        together = many.model(n).parameters()
        for (name, alone), other in zip(model.named_parameters(), together, strict=True):
            assert torch.allclose(alone, other, rtol=1e-9, atol=1e-12), name


def test_a_step_tells_what_was_before_it_and_after() -> None:
    many = ManyModels(models())
    start = many.weights
    order = batch_order(10, CONFIG, seed=0)
    steps = list(train_many(many, X, targets(0), order, CONFIG))
    assert [step.number for step in steps] == list(range(1, 5))
    assert steps[0].before is start and steps[-1].after is many.weights
    assert all(step.after is following.before for step, following in pairwise(steps))
    for step in steps:
        assert torch.equal(step.rows, order[step.number - 1])
        logits = many.logits(X[step.rows], step.before)
        assert torch.allclose(step.logits, logits)
        losses = [cross_entropy(own, targets(0)[step.rows]) for own in logits]
        assert torch.allclose(step.losses, torch.stack(losses))
    assert not any(w.requires_grad for w in many.weights.values())
    assert torch.allclose(models()[1](X), many.logits(X, start)[1])


def test_every_epoch_has_each_example_once_but_for_a_rest() -> None:
    order = batch_order(10, CONFIG, seed=1)
    assert order.shape == (4, 4)
    assert [len(set(epoch.tolist())) for epoch in order.view(2, 8)] == [8, 8]
    assert not torch.equal(order[:2], order[2:])
    assert not torch.equal(order, batch_order(10, CONFIG, seed=2))


def test_what_cannot_train_together_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        ManyModels([])
    with pytest.raises(ConfigError, match="same parameters"):
        ManyModels([nn.Linear(2, 3), nn.Linear(3, 3)])
    with pytest.raises(ConfigError, match="running_mean"):
        ManyModels([nn.BatchNorm1d(3)])
    with pytest.raises(ConfigError, match="there are 3 examples"):
        batch_order(3, CONFIG, seed=0)
    many = ManyModels(models())
    with pytest.raises(ConfigError, match="one for each of the 3"):
        next(train_many(many, X, targets(0).expand(2, 10, 5), batch_order(10, CONFIG, 0), CONFIG))
    blown = SGDConfig(learning_rate=1e200, batch_size=4, epochs=2)
    with pytest.raises(DynolabError, match="model 0, 1, 2 is not finite"):
        list(train_many(many, X, targets(0), batch_order(10, blown, 0), blown))


LABELS = torch.arange(1000) % 10


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.4, 0.8, 0.999])
def test_exactly_the_share_is_flipped_and_never_to_the_same_class(noise: float) -> None:
    flipped = flip_labels(LABELS, 10, noise, seeded())
    assert int(flipped.wrong.sum()) == round(noise * 1000)
    assert set(flipped.given.tolist()) <= set(range(10))
    assert torch.equal(flipped.true, LABELS)


def test_wrong_labels_spread_evenly_over_the_other_classes() -> None:
    labels = torch.zeros(9000, dtype=torch.long)
    labels[:10] = torch.arange(10)
    found = flip_labels(labels, 10, 0.99, seeded())
    counts = torch.bincount(found.given[found.wrong & (labels == 0)], minlength=10)
    assert counts[0] == 0
    assert counts[1:].float().std() < 4 * (counts.sum() / 9) ** 0.5


@pytest.mark.parametrize("seed", range(5))
def test_wrong_labels_stand_anywhere_in_the_first_epoch_s_order(seed: int) -> None:
    wrong = seeded_flip(LABELS, 10, 0.4, seed).wrong
    first = batch_order(1000, SGDConfig(epochs=1), seed)[:15]
    assert float(wrong[first].float().mean()) == pytest.approx(0.4, abs=0.1)
    assert seed_for("wrong labels", seed) != seed_for("outside predictions", seed)


def test_a_seed_decides_which_and_the_labels_stay_as_they_were() -> None:
    first, again, other = (flip_labels(LABELS, 10, 0.4, seeded(seed)).given for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(LABELS, torch.arange(1000) % 10)


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([0, 10], 10, r"labels = 10: is out of range.*0 … 9"),
        ([0, -1], 2, "labels = -1: is out of range"),
        ([0, 2, 0], 3, "no example of class 1"),
    ],
)
def test_labels_out_of_range_and_classes_without_examples_are_refused(
    labels: list[int], classes: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_labels(torch.tensor(labels), classes)
    with pytest.raises(ConfigError, match=message):
        flip_labels(torch.tensor(labels), classes, 0.2, seeded())


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


def test_the_table_averages_probabilities_as_the_rule_written_out_does() -> None:
    generator = torch.Generator().manual_seed(0)
    table = FilterTable(2, 6, 3, decay=0.9)
    by_hand: dict[tuple[int, int], torch.Tensor] = {}
    for _ in range(12):
        index = torch.stack([torch.randperm(6, generator=generator)[:2] for _ in range(2)])
        p = torch.randn(2, 2, 3, generator=generator).softmax(-1)
        table.visit(index, p)
        for model, place in product(range(2), range(2)):
            key = model, int(index[model, place])
            old, new = by_hand.get(key), p[model, place]
            by_hand[key] = new if old is None else 0.9 * old + 0.1 * new
    for (model, example), q in by_hand.items():
        torch.testing.assert_close(table.q[model, example], q)
    sums = table.q.sum(-1)
    torch.testing.assert_close(sums[sums > 0], torch.ones_like(sums[sums > 0]))


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
    others = disagreement(q, torch.tensor([0, 0]))
    torch.testing.assert_close(others, torch.tensor([0.8, 0.1]))
