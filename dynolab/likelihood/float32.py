"""Refuses float32 products that are rounded on the way."""

from __future__ import annotations

import torch

from dynolab.errors import ConfigError

_EXACT = ("ieee", "none")  # none: torch's default, which is ieee


def check_float32_products() -> None:
    """Raises `ConfigError` if torch may round the factors of float32 matrix products.

    TF32 keeps 10 bits of 23: a change of log π is then off by several percent, and the replay of a
    step by more than the step's own second order. Containers may switch it on by an environment
    variable, `TORCH_ALLOW_TF32_CUBLAS_OVERRIDE`.
    """
    backends = {
        "torch.backends.cuda.matmul.fp32_precision": torch.backends.cuda.matmul,
        "torch.backends.mkldnn.matmul.fp32_precision": torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
    }
    for name, backend in backends.items():
        if backend.fp32_precision not in _EXACT:
            raise ConfigError(
                name,
                backend.fp32_precision,
                "forces need exact float32 products; call "
                "torch.set_float32_matmul_precision('highest'), or unset "
                "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
            )
