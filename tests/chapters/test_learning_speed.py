"""Accumulated influence against every pair's own product, and against what training did."""

from __future__ import annotations

import torch

from dynolab.chapters.images import ImageConfig, load_images
from dynolab.chapters.supervision.speeds import (
    SpeedConfig,
    Toy,
    accumulate,
    coherent_and_contradictory,
    compare_speeds,
    train_alone,
)
from models.vision import build_classifier


def small(steps: int, learning_rate: float):  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)
        ).double()
    inputs = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (8,), generator=generator)
    groups = torch.arange(8) % 2
    found = accumulate(model, inputs, labels, groups, steps=steps, learning_rate=learning_rate)
    return model, inputs, labels, groups, found


def test_one_step_s_influences_are_the_products_of_all_pairs_gradients() -> None:
    model, inputs, labels, groups, found = small(1, 0.5)

    def gradient(i: int) -> torch.Tensor:
        logp = model(inputs[i : i + 1])[0].log_softmax(-1)[labels[i]]
        return torch.cat([g.flatten() for g in torch.autograd.grad(logp, model.parameters())])

    each = torch.stack([gradient(i) for i in range(8)])
    pairs = 0.5 / 8 * each @ each.T
    torch.testing.assert_close(found.own[1], pairs.diagonal())
    for group in (0, 1):
        others = pairs[:, groups == group].sum(1) - pairs.diagonal() * (groups == group)
        torch.testing.assert_close(found.from_groups[1, :, group], others)
    torch.testing.assert_close(found.total[1], pairs.sum(1))


def test_small_steps_accumulate_to_what_training_did() -> None:
    errors = []
    for steps, learning_rate in ((400, 0.01), (100, 0.04)):
        *_, influence = small(steps, learning_rate)
        assert influence.measured.shape == (steps + 1, 8)
        measured = influence.measured[-1]
        errors.append((influence.total[-1] - measured).norm() / measured.norm())
    assert errors[0] < 0.01
    assert 3 < errors[1] / errors[0] < 5  # the error is of first order in the step's size


def test_a_group_alone_takes_the_steps_that_it_takes_among_all() -> None:
    model, inputs, labels, _, found = small(5, 0.2)
    everyone = Toy(("all", "none"), inputs, labels, torch.zeros(8, dtype=torch.long), 3)
    alone = train_alone(model, everyone, 0, steps=5, learning_rate=0.2)
    torch.testing.assert_close(alone, found.measured.mean(1))
    half = Toy(("first", "second"), inputs, labels, torch.arange(8) // 4, 3)
    alone = train_alone(model, half, 0, steps=5, learning_rate=0.2)
    few = accumulate(
        model, inputs[:4], labels[:4], torch.zeros(4, dtype=torch.long), steps=5, learning_rate=0.1
    )
    torch.testing.assert_close(alone, few.measured.mean(1))


def test_the_pair_toy_differs_in_agreement_alone() -> None:
    toy = coherent_and_contradictory(50, torch.Generator().manual_seed(0))
    first, second = toy.labels[:50], toy.labels[50:]
    assert torch.equal(first == second, toy.groups[:50] == 0)
    assert torch.equal(toy.groups[:50], toy.groups[50:])
    between = (toy.inputs[:50] - toy.inputs[50:]).norm(dim=1)
    assert between.max() < torch.pdist(toy.inputs[:50]).min()


def test_the_comparisons_give_every_kind_and_seed_and_sums_that_add_up() -> None:
    data = load_images(ImageConfig(train=60, validation=10, test=10))
    config = SpeedConfig(examples=40, steps=6, points=3)

    def build(shape, classes, seed):  # type: ignore[no-untyped-def]
        return build_classifier("mlp", shape, classes, seed)

    rows = compare_speeds(build, data.train, 10, config, (0, 1))
    assert (len(rows), len({(row["contrast"], row["kind"]) for row in rows})) == (8, 4)
    for row in rows:
        assert row["steps"] == [0, 3, 6]
        parts = torch.tensor([row[name] for name in ("own", "from_alike", "from_others")])
        assert torch.allclose(parts.sum(0), torch.tensor(row["influence"]), atol=1e-5)
        assert row["kind"] != "clean" or row["speed"] > 0
        assert abs(row["speed"] - row["first_order"]) < 0.1 * abs(row["speed"]) + 0.01
        assert row["alone"][0] == 0
    clean = config.model_copy(update={"noise": 0.0})
    contrasts = {row["contrast"] for row in compare_speeds(build, data.train, 10, clean, (0,))}
    assert "clean-noisy" not in contrasts
