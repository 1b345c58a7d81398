"""A model as a function of its weights: values, precision, and which derivatives are trusted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dynolab.data.batches import collate
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction, View
from dynolab.forces.function import derivatives as trials
from dynolab.forces.function.derivatives import (
    Derivatives,
    derivatives_of,
    measure_derivatives,
)
from dynolab.forces.function.policy import gpu_tokens
from dynolab.forces.function.views import dtype_preserving, is_rms_norm, log_softmax
from dynolab.forces.function.weights import cast_like, gradients
from dynolab.likelihood.checked import checks_kept
from tests.forces.small_models import direction, encoded, llama, neox, relative, weights

BATCH = collate([encoded(1), encoded(2, 6, 3)], 0)


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


def test_gradients_are_of_what_pulls_at_a_value() -> None:
    w = torch.tensor([2.0, 3.0], requires_grad=True)
    apart = torch.tensor([1.0], requires_grad=True)
    found = gradients(w.square(), {"w": w, "apart": apart}, torch.tensor([1.0, -10.0]))
    assert {name: g.tolist() for name, g in found.items()} == {"w": [4.0, -60.0], "apart": [0.0]}


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
    """No more than the policy's own bound; what comes next waits."""
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
    monkeypatch.setattr(PolicyFunction, "tangents_together", 2)
    each = policy.derivatives(square_sum, {}, some(5))
    assert taken == [2, 2, 1] and each.shape == (5, 1)
    taken.clear()
    monkeypatch.setattr(PolicyFunction, "tangents_together", 3)
    apart = policy.derivatives(
        square_sum, {}, [direction(policy.model, 1e-3, seed) for seed in range(5)]
    )
    assert taken == [3, 2]
    assert relative(each, apart) < 1e-12


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_log_softmax_is_torchs_over_the_last_axis(shape: tuple[int, ...]) -> None:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(log_softmax(logits), torch.log_softmax(logits, dim=-1))


def test_the_likeliest_tokens_derivative_keeps_its_digits() -> None:
    """∂ log π_0/∂z_0 = 1 − π_0 = 2 e^{−30}/(1 + 2 e^{−30}), far below float32's ε."""
    logits = torch.tensor([[30.0, 0.0, 0.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(log_softmax(logits)[0, 0], logits)
    small = math.exp(-30)
    assert gradient[0].tolist() == pytest.approx([2 * small, -small, -small], rel=1e-5)
    assert float(log_softmax(logits)[0, 0].detach()) == pytest.approx(-2 * small, rel=1e-5)


class Rounding(nn.Module):
    """A module that rounds as transformers' norms do, with a constant of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.ones(2, 3, dtype=torch.float64))


def test_nothing_in_float64_is_rounded_while_it_is_preserved() -> None:
    wide = torch.full((3,), 1 / 3, dtype=torch.float64)
    with dtype_preserving(Rounding()):
        for rounded in (
            wide.float(),
            wide.half(),
            wide.bfloat16(),
            wide.to(torch.float32),
            wide.to(dtype=torch.float32),
            torch.softmax(wide, -1, dtype=torch.float32),
            torch.softmax(input=wide, dim=-1),
            torch.nn.functional.softmax(wide, dim=-1, dtype=torch.float32),
        ):
            assert rounded.dtype == torch.float64
        assert wide.float() is wide
    assert wide.float().dtype == wide.to(torch.float32).dtype == torch.float32


def test_buffers_of_the_model_and_views_of_them_are_rounded_as_in_its_forward() -> None:
    model = Rounding()
    with dtype_preserving(model):
        assert model.angles.float().dtype == torch.float32
        assert model.angles[0].float().dtype == torch.float32
        assert model.angles[0].to(dtype=torch.float32).dtype == torch.float32
        assert (2 * model.angles).float().dtype == torch.float64


def test_rms_norms_are_known_by_the_end_of_their_class_name() -> None:
    named = type("LlamaRMSNorm", (nn.Module,), {})
    assert is_rms_norm(named()) and is_rms_norm(nn.RMSNorm(2))
    assert not is_rms_norm(nn.LayerNorm(2))


def test_a_derivative_agrees_up_to_the_tolerance() -> None:
    found = Derivatives("Model", 0.05, {"forward": 0.05, "backward": 0.051})
    assert found.agrees("forward") and not found.agrees("backward")
    found.require("forward")
    said = (
        r"model = 'Model': backward derivative: differs from .* by 0.051 of it; .*; load it without"
    )
    with pytest.raises(ConfigError, match=said):
        found.require("backward")


def test_a_derivative_that_cannot_be_run_says_why() -> None:
    found = Derivatives(
        "Model", 0.05, {"forward": math.inf}, {"forward": "NotImplementedError: no rule"}
    )
    said = (
        "model = 'Model': forward derivative: NotImplementedError: no rule; .*: analyse a model of"
    )
    with pytest.raises(ConfigError, match=said):
        found.require("forward")


def test_a_model_that_diverged_is_told_its_remedy() -> None:
    found = Derivatives("Model", 0.05, {"second": 1.0}, lowest=-2e3)
    with pytest.raises(ConfigError, match="clip_norm"):
        found.require("second")


def test_derivatives_are_measured_once_for_a_model_and_dtype_and_noted_every_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = neox()
    measured = []

    def measure(policy: PolicyFunction) -> Derivatives:
        measured.append(policy.dtype)
        return Derivatives("Model", 0.05, {"forward": math.inf, "backward": 0.0123})

    monkeypatch.setattr(trials, "measure_derivatives", measure)
    for _ in range(2):
        for dtype in (torch.float64, torch.float32):
            policy = PolicyFunction(model, dtype)
            with checks_kept() as checks:
                assert derivatives_of(policy).model == "Model"
            name = str(dtype).removeprefix("torch.")
            assert checks == {
                f"Model derivatives {name}": {
                    "tolerance": 0.05,
                    "forward": "fails",
                    "backward": 0.012,
                }
            }
    assert measured == [torch.float64, torch.float32]
    derivatives_of(PolicyFunction(neox(), torch.float64))
    assert len(measured) == 3


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-4), (torch.float32, 0.05)])
def test_a_plain_model_s_derivatives_agree_with_its_differences(
    dtype: torch.dtype, tolerance: float
) -> None:
    found = measure_derivatives(PolicyFunction(neox(), dtype))
    assert (found.model, found.tolerance) == ("GPTNeoXForCausalLM", tolerance)
    assert found.agrees("forward") and found.agrees("backward")
    assert found.reasons == {}


def test_a_gpu_s_batches_shrink_with_the_model_within_bounds() -> None:
    assert [gpu_tokens(2, 64), gpu_tokens(36, 4096), gpu_tokens(200, 16_384)] == [16_384, 910, 512]
