"""Classifiers: features and head, seeded, and functions that torch.func can take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.func import functional_call, jacrev, jvp, vmap

from dynolab.errors import ConfigError
from experiments.chapters.vision import build_classifier

SHAPES = [
    ("lenet", (1, 8, 8)),
    ("lenet", (1, 28, 28)),
    ("lenet", (3, 32, 32)),
    ("mlp", (30,)),
    ("mlp", (1, 8, 8)),
    ("transformer", (1, 8, 8)),
    ("transformer", (1, 28, 28)),
    ("resnet18", (3, 32, 32)),
]


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_logits_are_the_head_of_the_features(name: str, shape: tuple[int, ...]) -> None:
    state = torch.get_rng_state()
    model = build_classifier(name, shape, 7, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    x = torch.rand(2, *shape)
    logits = model(x)
    assert logits.shape == (2, 7)
    assert torch.equal(model.head(model.features(x)), logits)
    again, other = (build_classifier(name, shape, 7, seed=seed) for seed in (3, 4))
    assert torch.equal(again(x), logits)
    assert not torch.equal(other(x), logits)


@pytest.mark.parametrize(("name", "shape"), [s for s in SHAPES if s[0] != "resnet18"])
def test_forward_and_reverse_mode_agree_under_vmap(name: str, shape: tuple[int, ...]) -> None:
    model = build_classifier(name, shape, 3, seed=0).double()
    weights = {n: p.detach() for n, p in model.named_parameters()}
    direction = {n: torch.randn_like(w) for n, w in weights.items()}
    x = torch.rand(2, *shape, dtype=torch.float64)

    def logits(w: dict[str, torch.Tensor], one: torch.Tensor) -> torch.Tensor:
        return functional_call(model, w, (one[None],))[0]

    rows = vmap(jacrev(logits), (None, 0))(weights, x)
    reverse = sum((rows[n].flatten(2) @ d.flatten() for n, d in direction.items()), 0)
    forward = jvp(lambda w: functional_call(model, w, (x,)), (weights,), (direction,))[1]
    assert torch.allclose(forward, reverse, rtol=1e-10)


def test_an_image_s_logits_do_not_depend_on_its_batch() -> None:
    for name in ("lenet", "transformer", "resnet18"):
        model, x = build_classifier(name, (3, 32, 32), 4, seed=0).double(), torch.rand(3, 3, 32, 32)
        x = x.double()
        assert torch.allclose(model(x)[1], model(x[1:2])[0], rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("lenet", (1, 5, 8), "at least 8 × 8"),
        ("transformer", (30,), "or mlp"),
        ("vgg", (1, 8, 8), "choose one of lenet"),
    ],
)
def test_images_that_a_network_cannot_take_are_refused(
    name: Any, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_classifier(name, shape, 3, seed=0)
