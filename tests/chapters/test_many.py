"""Training many models at once gives each what it would have become alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from dynolab.chapters.classifiers.many import (
    ManyModels,
    SGDConfig,
    batch_order,
    cross_entropy,
    train_many,
)
from dynolab.errors import ConfigError, DynolabError
from models.vision import build_classifier
from tests.chapters.plain import train

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
