"""Arithmetic that keeps its digits: near certainty, and where modules fall back to float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def log_softmax(
    logits: Float[Tensor, "tokens vocabulary"],
) -> Float[Tensor, "tokens vocabulary"]:
    """`log π`, in nats, the likeliest token's as `log σ(z_v − log Σ_{u≠v} e^{z_u})`.

    torch's derivative `e_v − π` takes its own entry as 1 − π_v: where π_v nears one that entry,
    half of a force, rounds away. Here it is σ of the odds against v, as exact as the logits.
    """
    top = logits.argmax(-1, keepdim=True)
    others = logits.scatter(-1, top, float("-inf")).logsumexp(-1, keepdim=True)
    sure = F.logsigmoid(logits.gather(-1, top) - others)
    return torch.log_softmax(logits, dim=-1).scatter(-1, top, sure)


@contextmanager
def dtype_preserving(model: nn.Module) -> Iterator[None]:
    """RMSNorm in its input's dtype: transformers' own computes in float32 whatever it is given.

    `y = w ⊙ x / √(mean x² + ε)` (Zhang & Sennrich, arXiv 1910.07467, eq. 4). Float32 inside a
    float64 network leaves errors of 1e-9 to 1e-7 in its derivatives. Norms of another form (Gemma's
    1 + w, say) are left as they are.
    """
    norms = [module for module in model.modules() if _is_stock(module)]
    for module in norms:
        module.forward = partial(_rms_norm, module)
    try:
        yield
    finally:
        for module in norms:
            del module.forward


def is_rms_norm(module: nn.Module) -> bool:
    """Whether a module is one of transformers' RMSNorm classes (one per family) or torch's."""
    return type(module).__name__.endswith("RMSNorm")


def _is_stock(module: nn.Module) -> bool:
    known = {"LlamaRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "MistralRMSNorm"}
    return type(module).__name__ in known and "forward" not in vars(module)


def _rms_norm(module: nn.Module, hidden_states: Tensor) -> Tensor:
    epsilon: float = module.variance_epsilon  # type: ignore[assignment]
    weight: Tensor = module.weight  # type: ignore[assignment]
    mean_square = hidden_states.square().mean(-1, keepdim=True)
    return weight * (hidden_states * torch.rsqrt(mean_square + epsilon))
