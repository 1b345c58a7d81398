"""Small models with LoRA adapters, and steps of the adapters alone."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

from tests.forces.families import build

TARGETS = {
    "llama_tied": ["q_proj", "v_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj"],
    "gpt_neox": ["query_key_value", "dense_h_to_4h"],
}


def adapted(
    family: str, dtype: torch.dtype = torch.float64, *, zero: bool = False, **changes: Any
) -> PeftModel:
    """A family's model under LoRA; `zero` leaves B at zero, where training begins."""
    config = {"r": 3, "lora_alpha": 6, "lora_dropout": 0.3, "target_modules": TARGETS[family]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft on Conv1D and on tied heads
        model = get_peft_model(build(family, dtype), LoraConfig(**{**config, **changes}))
    if not zero:
        fill_b(model)
    return model


def fill_b(model: nn.Module) -> None:
    """Adapters as training leaves them: B is not zero."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "lora_embedding_A" in name:
                shape = parameter.shape
                noise = torch.randn(shape, generator=generator, dtype=parameter.dtype)
                parameter.copy_(0.1 * noise)
