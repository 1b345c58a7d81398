"""Which derivatives of a model are trusted, and on what sample they were tried."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction
from dynolab.forces.function import derivatives
from dynolab.forces.function.derivatives import (
    Derivatives,
    _sample,
    derivatives_of,
    measure_derivatives,
)
from dynolab.likelihood.checked import checks_kept
from tests.forces.small_models import neox


def policy_of(vocabulary: int, embeddings: object = None, **config: Any) -> Any:
    """As much of a policy as a sample is drawn for."""
    shape = SimpleNamespace(vocab_size=vocabulary, **config)
    return SimpleNamespace(
        causal=SimpleNamespace(
            config=SimpleNamespace(get_text_config=lambda: shape),
            get_input_embeddings=lambda: embeddings or SimpleNamespace(),
        )
    )


def samples(policy: Any, count: int = 40) -> list[Encoded]:
    return [_sample(policy.causal, torch.Generator().manual_seed(seed)) for seed in range(count)]


@pytest.mark.parametrize(
    ("context", "tokens", "prompt"),
    [
        ({}, 8, 3),
        ({"max_position_embeddings": None}, 8, 3),
        ({"max_position_embeddings": 64}, 8, 3),
        ({"max_position_embeddings": 7}, 7, 2),
        ({"max_position_embeddings": 6}, 6, 1),
        ({"max_position_embeddings": 4}, 4, 1),
        ({"max_position_embeddings": 2}, 2, 1),
    ],
    ids=str,
)
def test_a_sample_is_three_and_five_tokens_or_as_many_as_the_context_holds(
    context: dict[str, int | None], tokens: int, prompt: int
) -> None:
    for sample in samples(policy_of(9, **context)):
        assert (len(sample.ids), sample.prompt_length) == (tokens, prompt)


@pytest.mark.parametrize("padding", [0, 1, 3])
def test_every_token_but_the_padding_is_drawn(padding: int) -> None:
    policy = policy_of(4, SimpleNamespace(padding_idx=padding))
    drawn = {token for sample in samples(policy) for token in sample.ids}
    assert drawn == set(range(4)) - {padding}


def test_without_padding_every_token_but_the_last_is_drawn() -> None:
    for policy in (policy_of(4), policy_of(4, SimpleNamespace(padding_idx=None))):
        assert {token for sample in samples(policy) for token in sample.ids} == {0, 1, 2}


def test_a_sample_is_a_function_of_the_generator() -> None:
    assert samples(policy_of(50)) == samples(policy_of(50))
    assert len(set(samples(policy_of(50)))) > 30


def test_a_derivative_agrees_up_to_the_tolerance() -> None:
    found = Derivatives("Model", 0.05, {"forward": 0.05, "backward": 0.051})
    assert found.agrees("forward") and not found.agrees("backward")
    found.require("forward")
    with pytest.raises(ConfigError) as refused:
        found.require("backward")
    assert str(refused.value) == (
        "model = 'Model': backward derivative: differs from the central difference by 0.051 of "
        "it; its gradients are not those of its forward (straight-through rounding, a detached "
        "part), so no force follows from them; load it without quantisation or custom kernels"
    )


def test_a_derivative_that_cannot_be_run_says_why() -> None:
    found = Derivatives(
        "Model", 0.05, {"forward": math.inf}, {"forward": "NotImplementedError: no rule"}
    )
    with pytest.raises(ConfigError) as refused:
        found.require("forward")
    assert str(refused.value) == (
        "model = 'Model': forward derivative: NotImplementedError: no rule; force maps need no "
        "forward-mode derivative; predictions of whole steps do: analyse a model of a family "
        "that has one (Llama, Qwen, Mistral, GPT-NeoX ...)"
    )


def test_derivatives_are_measured_once_for_a_model_and_dtype_and_noted_every_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = neox()
    measured = []

    def measure(policy: PolicyFunction) -> Derivatives:
        measured.append(policy.dtype)
        return Derivatives("Model", 0.05, {"forward": math.inf, "backward": 0.0123})

    monkeypatch.setattr(derivatives, "measure_derivatives", measure)
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
