"""The exact kernel and the forces of classifiers, against plain autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from dynolab.chapters.classification.force_study import class_means
from dynolab.chapters.classifiers import gram
from dynolab.chapters.classifiers.forces import (
    centred_norms,
    classifier_kernel,
    force_of,
    label_forces,
    pair_forces,
    pull_of,
)
from dynolab.chapters.classifiers.gram import gradient_gram, without_layer
from dynolab.errors import ConfigError
from dynolab.forces import ModuleFunction, kernel_blocks
from models.vision import build_classifier

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


@pytest.mark.parametrize("name", ["lenet", "mlp", "transformer", "odd"])
def test_the_kernel_is_the_product_of_the_jacobians(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Odd().double() if name == "odd" else network(name)
    x, other = images(5, 0), images(3, 1)
    truth = torch.einsum("oap,ubp->ouab", jacobians(model, x), jacobians(model, other))
    found = classifier_kernel(model, x, other, CLASSES)
    assert torch.allclose(found, truth, rtol=1e-10, atol=1e-12)
    monkeypatch.setattr(gram, "TOGETHER", 2)
    monkeypatch.setattr(gram, "SLICE", 500)
    assert torch.allclose(classifier_kernel(model, x, other, CLASSES), found, rtol=1e-10)


def test_a_residual_network_of_convolutions_has_its_kernel() -> None:
    model = build_classifier("resnet18", (3, 8, 8), 3, seed=0).double()
    x = images(2, 0, (3, 8, 8))
    truth = torch.einsum("oap,ubp->ouab", jacobians(model, x), jacobians(model, x))
    assert torch.allclose(classifier_kernel(model, x, x, 3), truth, rtol=1e-9)


def test_the_kernel_is_that_of_the_general_engine() -> None:
    model, x = network("lenet"), images(2, 0)
    block = kernel_blocks(ModuleFunction(model, torch.float64), x[0], x[1])[0, 0]
    assert torch.allclose(classifier_kernel(model, x[:1], x[1:], CLASSES)[0, 0], block, rtol=1e-9)


def test_a_network_with_one_module_under_two_names_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    model, x = Odd().double(), images(2, 0)
    before = classifier_kernel(model, x, x, CLASSES)
    own = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    model.again = model.twice
    for _ in range(2):
        assert torch.allclose(classifier_kernel(model, x, x, CLASSES), before, rtol=1e-10)
    weights = dict(model.named_parameters())
    assert weights.keys() == own.keys()
    assert all(torch.equal(weight, own[name]) for name, weight in weights.items())


def test_parameters_that_do_not_act_as_a_layer_are_found() -> None:
    torch.manual_seed(0)
    assert without_layer(network("lenet"), images(2, 0)) == frozenset()
    assert without_layer(Odd().double(), images(2, 0)) == {"free", "head.weight", "head.bias"}


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
    labels = np.array([0, 1, 0])
    values = np.arange(9.0).reshape(3, 3)
    assert class_means(values, labels, labels, 2).tolist() == [[4.0, 4.0], [4.0, 4.0]]
    found = class_means(values, labels, labels, 2, same=True)
    assert found[0, 0] == (2 + 6) / 2
    assert found[0, 1] == (1 + 7) / 2
    assert np.isnan(found[1, 1])


def test_what_has_no_kernel_is_refused() -> None:
    with pytest.raises(ConfigError, match="classifier of 7 classes"):
        classifier_kernel(network("mlp"), images(2, 0), images(2, 1), 7)
    model = network("mlp")
    with torch.no_grad():
        next(model.parameters())[0, 0] = float("nan")
    with pytest.raises(ConfigError):
        classifier_kernel(model, images(2, 0), images(2, 1), CLASSES)
