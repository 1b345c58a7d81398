"""Functions of weights: which they take, what they compute, how many directions at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dynolab.data.batches import collate
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction, View
from dynolab.forces.function.logit_function import cast_like
from tests.forces.small_models import direction, encoded, llama, relative, weights

BATCH = collate([encoded(1), encoded(2, 6, 3)], 0)
SHORT = collate([Encoded((3, 4), 1)], 0)


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
