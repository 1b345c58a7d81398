"""Functions of weights: which they take, what they compute, how many directions at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dynolab.data.batches import collate
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction, View
from dynolab.forces.function.logit_function import ModuleFunction, cast_like
from tests.forces.small_models import direction, encoded, llama, neox, relative, weights

BATCH = collate([encoded(1), encoded(2, 6, 3)], 0)
SHORT = collate([Encoded((3, 4), 1)], 0)


def test_attention_is_named_where_it_is_chosen(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        PolicyFunction(neox())
    assert caplog.messages == [
        "force engine: attention on SDPA's math kernel (forward-mode derivatives)"
    ]


def test_weights_are_cast_to_a_functions_own() -> None:
    own = {"w": torch.zeros(2, dtype=torch.float64), "v": torch.zeros(1)}
    given = torch.tensor([1.0, 2.0], requires_grad=True)
    made = cast_like(own, {"w": given})
    assert list(made) == ["w"] and made["w"].tolist() == [1.0, 2.0]
    assert made["w"].dtype == torch.float64 and not made["w"].requires_grad


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": torch.zeros(2)}, r"weights\[x\] = \(2,\): the model has no such parameter"),
        (
            {"w": torch.zeros(3)},
            r"weights\[w\] = \(3,\): the model's has shape \(2,\); give the record's own model",
        ),
        ({"w": torch.tensor([0.0, torch.nan])}, r"^weights\[w\] = 'nan or inf'"),
    ],
    ids=["name", "shape", "nan"],
)
def test_weights_that_are_not_a_functions_own_are_refused(
    given: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        cast_like({"w": torch.zeros(2)}, given)


def test_a_call_at_other_weights_leaves_a_module_on_two_paths_as_it_was() -> None:
    model = llama(dtype=torch.float64)
    model.model.layers[1].mlp = model.model.layers[0].mlp
    policy, own = PolicyFunction(model, torch.float64), weights(model)
    twice = {name: 2 * weight for name, weight in own.items()}
    logits = policy.logits(twice, BATCH)
    assert all(torch.equal(weight, own[name]) for name, weight in model.named_parameters())
    model.load_state_dict(twice, strict=False)
    assert torch.equal(logits, PolicyFunction(model, torch.float64).logits({}, BATCH))


def test_a_policys_own_weights_have_its_precision() -> None:
    weights = PolicyFunction(neox(dtype=torch.float32), torch.float64).weights
    assert {weight.dtype for weight in weights.values()} == {torch.float64}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_log_probabilities_are_of_the_softmax_at_the_batchs_temperature(
    policy: PolicyFunction, temperature: float
) -> None:
    batch = replace(BATCH, temperature=temperature)
    logps = torch.log_softmax(policy.logits({}, BATCH) / temperature, dim=-1)
    own = logps.gather(1, BATCH.token[:, None])[:, 0]
    torch.testing.assert_close(policy.logps({}, batch), own)
    torch.testing.assert_close(policy.observed({}, batch), own)
    torch.testing.assert_close(policy.observed({}, batch, View.vocabulary()), logps)


def test_a_single_token_is_still_a_row(policy: PolicyFunction) -> None:
    assert policy.logps({}, SHORT).shape == (1,)
    assert policy.observed({}, SHORT, View.realised(SHORT)).shape == (1, 1)
    assert policy.change_along({}, [direction(policy.model, 1e-3)], SHORT).shape == (1, 1)


def test_sequences_become_one_batch_with_their_lengths(policy: PolicyFunction) -> None:
    batch, lengths = policy.batch([encoded(1), encoded(2, 6, 3)])
    assert lengths == [5, 3]
    assert torch.equal(batch.token, BATCH.token)


@pytest.mark.parametrize("view", [None, View.vocabulary()], ids=["realised", "vocabulary"])
def test_where_nothing_moves_nothing_changes(policy: PolicyFunction, view: View | None) -> None:
    shape = (8,) if view is None else (8, 50)
    assert policy.change_along({}, [], BATCH, view=view).shape == (0, *shape)
    for count in (1, 2):
        still = policy.change_along({}, [{}] * count, BATCH, view=view)
        assert still.shape == (count, *shape) and not still.any()
    moved = policy.change_along({}, [{}, direction(policy.model, 1e-3)], BATCH, view=view)
    assert not moved[0].any() and moved[1].any()


def square_sum(weights: dict[str, Tensor]) -> Tensor:
    return torch.stack([w.square().sum() for w in weights.values()]).sum()[None]


def test_a_derivative_is_taken_at_the_given_weights(policy: PolicyFunction) -> None:
    """Of Σ w², 2 Σ w d: at the weights named, and at the policy's own where none are."""
    name, other = list(policy.weights)[:2]
    d = {name: torch.ones_like(policy.weights[name])}
    at = {one: 3 * torch.ones_like(policy.weights[one]) for one in (name, other)}
    size = policy.weights[name].numel()
    assert policy.derivatives(square_sum, at, [d]).tolist() == [[pytest.approx(6.0 * size)]]
    own = 2 * float(policy.weights[name].sum())
    assert policy.derivatives(square_sum, {}, [d]).tolist() == [[pytest.approx(own)]]
    # What does not move stands where the weights named have it.
    product = policy.derivatives(lambda w: (w[name].sum() * w[other].sum())[None], at, [d])
    assert product.tolist() == [[pytest.approx(size * 3.0 * policy.weights[other].numel())]]
    # Both directions share a pass; each leaves the other's parameter still.
    both = policy.derivatives(square_sum, at, [d, {other: torch.ones_like(policy.weights[other])}])
    assert both[:, 0].tolist() == [
        pytest.approx(6.0 * size),
        pytest.approx(6.0 * policy.weights[other].numel()),
    ]


def test_directions_are_taken_some_at_a_time(
    policy: PolicyFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than asked for, or than the policy's own bound; what comes next waits."""
    taken: list[int] = []
    plain = policy._jvps

    def watched(function, at, directions):  # type: ignore[no-untyped-def]
        taken.append(len(directions))
        return plain(function, at, directions)

    def some(count: int) -> Iterator[dict[str, Tensor]]:
        for seed in range(count):
            assert sum(taken) == seed - seed % 2, "a direction was drawn too early"
            yield direction(policy.model, 1e-3, seed)

    monkeypatch.setattr(policy, "_jvps", watched)
    each = policy.derivatives(square_sum, {}, some(5), together=2)
    assert taken == [2, 2, 1] and each.shape == (5, 1)
    taken.clear()
    monkeypatch.setattr(PolicyFunction, "tangents_together", 3)
    apart = policy.derivatives(
        square_sum, {}, [direction(policy.model, 1e-3, seed) for seed in range(5)]
    )
    assert taken == [3, 2]
    assert relative(each, apart) < 1e-12


def test_a_batchs_logits_take_tokens_times_vocabulary_numbers(policy: PolicyFunction) -> None:
    assert policy._logits_bytes(BATCH) == 8 * 50 * 8
    assert PolicyFunction(neox(), torch.float32)._logits_bytes(SHORT) == 1 * 50 * 4


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
