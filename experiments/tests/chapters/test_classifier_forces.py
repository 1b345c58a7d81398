"""The exact kernel and the forces of classifiers, against plain autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from dynolab.errors import ConfigError
from experiments.chapters.classification.forces import class_means
from experiments.chapters.classifiers import forces
from experiments.chapters.classifiers.forces import (
    centred_norms,
    classifier_kernel,
    force_of,
    gradient_gram,
    label_forces,
    pair_forces,
    pull_of,
)
from experiments.chapters.vision import build_classifier

CLASSES = 4


def images(count: int, seed: int, shape: tuple[int, ...] = (1, 8, 8)) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, *shape, dtype=torch.float64, generator=generator)


def network(name: str, shape: tuple[int, ...] = (1, 8, 8)) -> nn.Module:
    return build_classifier(name, shape, CLASSES, seed=1).double()  # type: ignore[arg-type]


def jacobians(model: nn.Module, x: Tensor) -> Tensor:
    """∂ logits/∂θ of every image, images × classes × parameters."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    rows = vmap(jacrev(lambda w, one: functional_call(model, w, (one[None],))[0]), (None, 0))(
        weights, x
    )
    return torch.cat([row.flatten(2) for row in rows.values()], -1)


class Odd(nn.Module):
    """A weight used twice, a parameter of no module, a module called twice, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = nn.Linear(64, 6), nn.Linear(6, 6, bias=False)
        self.norm, self.free = nn.LayerNorm(6), nn.Parameter(torch.rand(6))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x.flatten(1))) * self.free
        h = self.norm(torch.tanh(self.twice(torch.tanh(self.twice(h)))))
        return self.head(h) + (h @ self.head.weight.T).square()


@pytest.mark.parametrize("name", ["lenet", "mlp", "transformer", "resnet18", "odd"])
def test_the_kernel_is_the_product_of_the_jacobians(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Odd().double() if name == "odd" else network(name)
    # A ResNet's Jacobian of one image takes 0.9 GB.
    x, other = (images(2, 0), images(1, 1)) if name == "resnet18" else (images(5, 0), images(3, 1))
    truth = torch.einsum("oap,ubp->ouab", jacobians(model, x), jacobians(model, other))
    found = classifier_kernel(model, x, other, CLASSES)
    assert torch.allclose(found, truth, rtol=1e-10, atol=1e-12)
    monkeypatch.setattr(forces, "ENTRIES", 1)
    assert torch.allclose(classifier_kernel(model, x, other, CLASSES), found, rtol=1e-10)


def test_any_cotangents_give_inner_products_of_their_gradients() -> None:
    model, x, other = network("lenet"), images(3, 0), images(2, 1)
    generator = torch.Generator().manual_seed(2)
    left, right = (
        torch.rand(n, r, CLASSES, dtype=torch.float64, generator=generator)
        for n, r in ((3, 2), (2, 1))
    )
    truth = torch.einsum(
        "orp,usp->ours", left @ jacobians(model, x), right @ jacobians(model, other)
    )
    assert torch.allclose(gradient_gram(model, x, left, other, right), truth, rtol=1e-10)


@pytest.mark.parametrize("name", ["lenet", "transformer"])
def test_pair_forces_are_the_change_that_a_step_on_the_pair_makes(name: str) -> None:
    model, x, other = network(name), images(3, 0), images(2, 1)
    targets = torch.eye(CLASSES, dtype=torch.float64)[[1, 3]]
    rate = 1e-7
    found = pair_forces(model, x, other, targets, rate)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for u in range(2):
        leaves = {n: w.clone().requires_grad_() for n, w in before.items()}
        loss = nn.functional.cross_entropy(
            functional_call(model, leaves, (other[u : u + 1],)), targets[u : u + 1]
        )
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        with torch.no_grad():
            after = {n: w - rate * g for (n, w), g in zip(leaves.items(), gradients, strict=True)}
            logps = [functional_call(model, w, (x,)).log_softmax(-1) for w in (before, after)]
        measured = logps[1] - logps[0]
        assert float((found[:, u] - measured).norm() / measured.norm()) < 1e-3


def test_label_forces_are_the_pair_forces_of_one_class() -> None:
    model, x, other = network("mlp"), images(3, 0), images(2, 1)
    targets = torch.eye(CLASSES, dtype=torch.float64)[[0, 2]]
    labels = torch.tensor([2, 0, 3])
    whole = pair_forces(model, x, other, targets, 0.1)
    found = label_forces(model, x, labels, other, targets, 0.1)
    assert torch.allclose(found, whole[torch.arange(3), :, labels], rtol=1e-10)


def test_pull_and_force_are_derivatives() -> None:
    logits = torch.randn(3, CLASSES, dtype=torch.float64, requires_grad=True)
    targets = torch.rand(3, CLASSES, dtype=torch.float64).softmax(-1)
    loss = -(targets * logits.log_softmax(-1)).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.allclose(force_of(logits, targets), gradient)
    truth = vmap(jacrev(lambda z: z.log_softmax(-1)))(logits)
    assert torch.allclose(pull_of(logits), truth)


def test_a_shift_of_all_logits_leaves_the_centred_norm() -> None:
    kernel = torch.rand(2, 3, CLASSES, CLASSES, dtype=torch.float64)
    shift = torch.rand(2, 3, CLASSES, 1, dtype=torch.float64)
    assert torch.allclose(centred_norms(kernel + shift), centred_norms(kernel))
    assert torch.allclose(centred_norms(kernel + shift.transpose(-1, -2)), centred_norms(kernel))
    c = torch.eye(CLASSES, dtype=torch.float64) - 1 / CLASSES
    assert torch.allclose(centred_norms(kernel), (c @ kernel @ c).flatten(2).norm(dim=-1))


def test_class_means_leave_out_an_image_with_itself() -> None:
    labels = torch.tensor([0, 1, 0])
    values = torch.arange(9.0).reshape(3, 3)
    assert class_means(values, labels, labels, 2).tolist() == [[4.0, 4.0], [4.0, 4.0]]
    found = class_means(values, labels, labels, 2, same=True)
    assert found[0, 0] == (2 + 6) / 2
    assert found[0, 1] == (1 + 7) / 2
    assert found[1, 1] != found[1, 1]


def test_weights_that_are_not_finite_are_refused() -> None:
    model = network("mlp")
    with torch.no_grad():
        next(model.parameters())[0, 0] = float("nan")
    with pytest.raises(ConfigError):
        classifier_kernel(model, images(2, 0), images(2, 1), CLASSES)
