"""Digits near certainty, and float64 that stays float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dynolab.forces.function.precision import dtype_preserving, is_rms_norm, log_softmax


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
