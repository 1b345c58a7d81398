"""Products in float32, TF32 and bf16, and the kernels of attention, beside float64 on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend

from dynolab.distributed import device
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction
from dynolab.likelihood.arithmetic import reproducible
from tests.forces.small_models import neox, relative
from tests.gpu.check.machine import gpu_count
from tests.gpu.check.outcome import Check, Figure

SIZE = 1024
HEADS, LENGTH, WIDTH = 8, 256, 64
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def _numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def products(_: Path) -> Mapping[str, float]:
    left, right = _numbers(SIZE, SIZE), _numbers(SIZE, SIZE, seed=1)
    truth = left @ right

    def error(dtype: torch.dtype) -> float:
        made = left.to(device(), dtype) @ right.to(device(), dtype)
        return relative(made.cpu().double(), truth)

    values = {
        "float32_product_error": error(torch.float32),
        "bf16_product_error": error(torch.bfloat16),
    }
    torch.set_float32_matmul_precision("high")
    try:
        values["tf32_product_error"] = error(torch.float32)
        PolicyFunction(neox(dtype=torch.float32).to(device()))
        return values | {"tf32_refused": 0.0}
    except ConfigError:
        return values | {"tf32_refused": 1.0}
    finally:
        torch.set_float32_matmul_precision("highest")


def attention(_: Path) -> Mapping[str, float]:
    """Outputs of causal attention by each kernel."""
    inputs = [_numbers(1, HEADS, LENGTH, WIDTH, seed=seed) for seed in range(3)]
    truth = attend(*inputs, is_causal=True)
    values = {}
    for name, kernel in KERNELS.items():
        if name != "math" and not gpu_count():
            continue
        moved = [each.to(device(), torch.bfloat16) for each in inputs]
        try:
            with sdpa_kernel(kernel):
                made = attend(*moved, is_causal=True)
        except RuntimeError as error:  # older GPUs have not all kernels
            print(f"kernel {name}: {error}", file=sys.stderr)
            continue
        values[f"{name}_error"] = relative(made.cpu().double(), truth)
    return values


def attention_again(_: Path) -> Mapping[str, float]:
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().to(device())
    with reproducible(device()):
        return {
            "gradient_again": _again(lambda *parts: attend(*parts, is_causal=True)),
            "masked_gradient_again": _again(lambda *parts: attend(*parts, attn_mask=mask)),
        }


def _again(act: Callable[..., Tensor]) -> float:
    """The largest difference between the gradients of two passes."""

    def gradients() -> list[Tensor]:
        parts = [
            _numbers(4, HEADS, LENGTH, WIDTH, seed=seed)
            .to(device(), torch.float32)
            .requires_grad_()
            for seed in range(3)
        ]
        return list(torch.autograd.grad(act(*parts).square().sum(), parts))

    pairs = zip(gradients(), gradients(), strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs)


CHECKS = [
    Check(
        name="products",
        asserts="Float32 products are exact, bf16 rounds as it should, and forces refuse TF32.",
        figures=(
            Figure(
                name="float32_product_error",
                means="error of a float32 product, of its norm",
                at_most=1e-5,
            ),
            Figure(
                name="bf16_product_error",
                means="error of a bf16 product, of its norm",
                at_most=1e-2,
            ),
            Figure(
                name="tf32_product_error",
                means="error of a float32 product where TF32 is allowed",
                needs_gpu=True,
            ),
            Figure(name="tf32_refused", means="1 if the force engine refuses TF32", at_least=1.0),
        ),
        measure=products,
        stand_in="pretended GPU",
    ),
    Check(
        name="attention",
        asserts="Every attention kernel gives bf16's numbers.",
        figures=tuple(
            Figure(
                name=f"{name}_error",
                means=f"error of causal attention by the kernel {name} in bf16, of its norm",
                at_most=2e-2,
                needs_gpu=name != "math",
            )
            for name in KERNELS
        ),
        measure=attention,
        stand_in="pretended GPU",
    ),
    Check(
        name="attention-again",
        asserts="Attention as trainings take it has the same gradient at each run.",
        figures=(
            Figure(
                name="gradient_again",
                means="largest difference between two runs' gradients, causal",
                at_most=0.0,
                needs_gpu=True,
            ),
            Figure(
                name="masked_gradient_again",
                means="the same with a mask",
                at_most=0.0,
                needs_gpu=True,
            ),
        ),
        measure=attention_again,
        stand_in="pretended GPU",
    ),
]
