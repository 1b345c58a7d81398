"""How torch computes: exact float32 products, and sums in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

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


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """While open, a GPU computes the same numbers each time: resumed trainings end with the same
    bits, and recorded steps can be replayed.

    CUDA adds in the order of its threads in `index_add`, in the gradient of `gather`, and in the
    gradient of attention with a mask by the memory-efficient and cuDNN kernels. The first two then
    sort, and attention takes the flash kernel without a mask, else plain products, which need
    memory for length² numbers a head. cuBLAS reads `CUBLAS_WORKSPACE_CONFIG` when it starts. CPUs
    need nothing of this.
    """
    if device.type != "cuda":
        yield
        return
    kernels = torch.backends.cuda
    with ExitStack() as restored:
        restored.callback(
            torch.use_deterministic_algorithms,
            torch.are_deterministic_algorithms_enabled(),
            warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        restored.callback(kernels.enable_mem_efficient_sdp, kernels.mem_efficient_sdp_enabled())
        restored.callback(kernels.enable_cudnn_sdp, kernels.cudnn_sdp_enabled())
        # An operation without an ordered form warns: it may be in any model.
        torch.use_deterministic_algorithms(True, warn_only=True)
        kernels.enable_mem_efficient_sdp(False)
        kernels.enable_cudnn_sdp(False)
        yield
