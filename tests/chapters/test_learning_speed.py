"""Accumulated influence against every pair's own product, and against what training did."""

from __future__ import annotations

import torch

from dynolab.chapters.classifiers.toys import coherent_and_contradictory
from dynolab.chapters.supervision.speed_comparisons import (
    SpeedConfig,
    accumulate,
    compare_speeds,
    speed,
)
from dynolab.data.images.images import ImageConfig, load_images
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
    *_, found = small(400, 0.01)
    assert found.measured.shape == (401, 8)
    error = (found.total[-1] - found.measured[-1]).norm() / found.measured[-1].norm()
    assert error < 0.01
    *_, larger = small(100, 0.04)
    coarse = (larger.total[-1] - larger.measured[-1]).norm() / larger.measured[-1].norm()
    assert 3 < coarse / error < 5  # the error is of first order in the step's size


def test_speed_is_the_mean_height_of_the_path_after_its_start() -> None:
    assert speed(torch.tensor([0.0, 1.0, 3.0])) == 2.0


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
    kinds = {(row.contrast, row.kind) for row in rows}
    assert len(kinds) == 4
    assert len(rows) == 8
    for row in rows:
        assert row.steps == (0, 3, 6)
        parts = zip(row.own, row.from_alike, row.from_others, strict=True)
        assert torch.allclose(
            torch.tensor([sum(one) for one in parts]), torch.tensor(row.influence), atol=1e-5
        )
    assert not any(
        row.contrast == "clean-noisy"
        for row in compare_speeds(
            build, data.train, 10, config.model_copy(update={"noise": 0.0}), (0,)
        )
    )
