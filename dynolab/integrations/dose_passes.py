"""Forward passes of a trainer's model for doses: what they give, and how they are made again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dynolab.errors import ConfigError

ROUGH = 0.3
"""How much of a slope may change where it is taken twice as far.

A smooth slope hardly changes. One that is all rounding halves: the error stays, the way doubles.
"""

BYPASSED = (
    "the loss goes round the outputs of the model's forward, through which doses act (a fused or "
    "cut cross entropy); use one on its logits or log-probabilities, or leave DesignedDose out"
)


Outputs = Float[Tensor, "rows length *vocabulary"]
"""Logits, or the log-probabilities that a fused head gives."""


def is_smooth(slope: Float[Tensor, "*outputs"], farther: Float[Tensor, "*outputs"]) -> bool:
    """Whether difference quotients are the outputs' own; False where none of them moves.

    **Arguments:** `slope`, `farther`: over some way, and over twice that way.

    **Raises:** `ConfigError` where they are rounding, which twice the way halves.
    """
    some = slice(None, None, max(1, slope.numel() // 2**16))  # about 65,000 of them tell
    near, far = slope.flatten()[some], farther.flatten()[some]
    moves = (near != 0) | (far != 0)
    near, far = near[moves], far[moves]
    if len(near) and bool((far - near).abs().median() > ROUGH * near.abs().median()):
        raise ConfigError(
            "trainer.model",
            "a forward that rounds what float32 weights give",
            "doses are differences of outputs, which its rounding drowns; train without autocast "
            "or quantised layers of the model's own",
        )
    return bool(len(near))


@contextmanager
def without_autocast(model: nn.Module, device: torch.device) -> Iterator[None]:
    """While open, the model computes in its weights' dtype.

    accelerate has the model's `forward` enter autocast, which no context around it switches off;
    it keeps the model's own as `_original_forward`.
    """
    forwards = vars(model)
    around, inside = forwards.get("forward"), forwards.get("_original_forward")
    with torch.autocast(device.type, enabled=False):
        if inside is not None:
            forwards["forward"] = inside
        try:
            yield
        finally:
            if inside is not None:
                forwards["forward"] = around


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """While open, the model is in eval mode, without dropout.

    Layers whose passes are checkpointed stay as they are: transformers checkpoints in training
    mode alone.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, training in modes:
            module.training = training and bool(getattr(module, "gradient_checkpointing", False))
        yield
    finally:
        for module, training in modes:
            module.training = training


def outputs_of(output: Any) -> Float[Tensor, "rows length ..."]:
    """The log-probabilities that a fused head gives, else the logits."""
    for name in ("log_probs", "logits"):
        outputs: Float[Tensor, "rows length ..."] | None = getattr(output, name, None)
        if outputs is not None:
            return outputs
    raise ConfigError("trainer.model", "a forward without logits", BYPASSED)
