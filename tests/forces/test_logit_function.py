"""A classifier as a function of its weights: what goes in, what comes out, what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dynolab.errors import ConfigError
from dynolab.forces.function.logit_function import ModuleFunction


def linear() -> nn.Linear:
    """z = W x + b with W = [[1, 2], [3, 4], [5, 6]], b = [0.5, 0, 0]."""
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
        model.bias.copy_(torch.tensor([0.5, 0.0, 0.0]))
    return model


def test_logits_are_the_module_s_own_item_after_item() -> None:
    function = ModuleFunction(linear())
    items = [torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])]
    batch, positions = function.batch(items)
    assert positions == [1, 1]
    assert function.logits({}, batch).tolist() == [[1.5, 3, 5], [3.5, 7, 11]]
    moved = {"bias": torch.tensor([0.0, 0.0, 1.0])}
    assert function.logits(moved, batch).tolist() == [[1, 3, 6], [3, 7, 12]]
    assert (function.dtype, function.device) == (torch.float32, torch.device("cpu"))


def test_features_and_weights_are_computed_in_the_function_s_dtype() -> None:
    function = ModuleFunction(linear(), torch.float64)
    batch, _ = function.batch([torch.tensor([0.1, 0.2])])
    assert batch.dtype == torch.float64
    assert {weight.dtype for weight in function.weights.values()} == {torch.float64}
    assert function.cast({"bias": torch.zeros(3)})["bias"].dtype == torch.float64
    assert function.logits({}, batch).dtype == torch.float64


def test_indices_stay_indices() -> None:
    function = ModuleFunction(nn.Embedding(4, 3), torch.float64)
    batch, _ = function.batch([torch.tensor(2), torch.tensor(0)])
    assert batch.tolist() == [2, 0] and not batch.is_floating_point()
    assert torch.equal(function.logits({}, batch), function.weights["weight"][[2, 0]])


@pytest.mark.parametrize("training", [True, False])
def test_the_module_evaluates_and_is_left_in_its_mode(training: bool) -> None:
    model = nn.Sequential(nn.Dropout(0.9), linear(), nn.BatchNorm1d(3)).train(training)
    function = ModuleFunction(model, torch.float64)
    batch, _ = function.batch([torch.tensor([1.0, 0.0])])
    still = torch.tensor([[1.5, 3, 5]], dtype=torch.float64) / (1 + 1e-5) ** 0.5
    assert torch.allclose(function.logits({}, batch), still, rtol=1e-9)
    assert model.training == model[0].training == training
    assert model[2].num_batches_tracked == 0


def test_a_failing_module_is_left_in_its_mode() -> None:
    model = linear().train()
    with pytest.raises(RuntimeError):
        ModuleFunction(model).logits({}, torch.zeros(1, 5))
    assert model.training


def test_a_diverged_module_is_refused_by_the_name_of_the_parameter() -> None:
    model = linear()
    with torch.no_grad():
        model.bias[1] = float("inf")
    remedy = "training diverged; give a checkpoint from before divergence"
    with pytest.raises(ConfigError, match=rf"^weights\[bias\] = 'nan or inf': {remedy}$"):
        ModuleFunction(model)


def test_a_module_without_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model = 'Tanh': it has no parameters to move$"):
        ModuleFunction(nn.Tanh())


@pytest.mark.parametrize("shape", [(6,), (2, 3, 1), (3, 2)])
def test_an_output_that_is_not_examples_by_classes_is_refused(shape: tuple[int, ...]) -> None:
    class Reshaped(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).reshape(shape)

    function = ModuleFunction(Reshaped(2, 3))
    with pytest.raises(ConfigError) as refused:
        function.logits({}, torch.ones(2, 2))
    assert str(refused.value) == (
        f"model = 'output of shape {shape} for 2 examples': "
        "give a module whose output is examples × classes"
    )


def test_foreign_weights_are_refused() -> None:
    function = ModuleFunction(linear())
    with pytest.raises(ConfigError, match="no such parameter"):
        function.cast({"gain": torch.ones(3)})
    with pytest.raises(ConfigError, match="shape"):
        function.cast({"bias": torch.ones(4)})
