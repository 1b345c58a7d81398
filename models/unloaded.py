"""Models without their weights: built from a configuration alone, on whatever device is current."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from dynolab.errors import ConfigError
from dynolab.training.adapters import add_adapters
from dynolab.training.config import LoraConfig
from models.folder import adapter_base, check_source
from models.language import supported_attention

_NEOX = {"model_type": "gpt_neox", "vocab_size": 50_304, "tie_word_embeddings": False}

KNOWN: dict[str, dict[str, Any]] = {
    "EleutherAI/pythia-410m-deduped": _NEOX
    | {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
    "EleutherAI/pythia-1.4b-deduped": _NEOX
    | {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16},
    "EleutherAI/pythia-2.8b-deduped": _NEOX
    | {"hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32},
    "Qwen/Qwen1.5-1.8B": {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 5504,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": False,
    },
    "meta-llama/Meta-Llama-3-8B": {
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    },
}
"""Sizes of the models that this project's study files name, from their own config.json."""

for _settings in KNOWN.values():
    _settings.setdefault("intermediate_size", 4 * _settings["hidden_size"])
    _settings.setdefault("max_position_embeddings", 2048)


def read_config(source: str, revision: str | None = None) -> PreTrainedConfig:
    """A model's configuration: of a folder, of `KNOWN`, or from the Hub.

    **Raises:** `ConfigError` where the Hub does not give one.
    """
    if source in KNOWN:
        return AutoConfig.for_model(**KNOWN[source])
    if (base := adapter_base(source)) is not None:
        return read_config(*base)
    check_source(source, "config.json", "model configuration")
    folder = Path(source).is_dir()
    try:
        return AutoConfig.from_pretrained(
            source, revision=None if folder else revision, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            "base.source",
            source,
            "its config.json, by which a plan knows its size, cannot be read "
            f"({type(error).__name__}); give a folder that holds it, or one of {', '.join(KNOWN)}",
        ) from error


Build = Callable[[int, torch.dtype], PreTrainedModel]
"""Makes a model with so many layers, in a dtype."""


def builder(config: PreTrainedConfig, attention: str = "sdpa") -> Build:
    """A function from a number of layers and a dtype to a model of this configuration.

    Settings of single layers (`layer_types`, …) are repeated or cut to the number of layers.
    """
    attention = supported_attention(config, attention)

    def build(layers: int, dtype: torch.dtype) -> PreTrainedModel:
        shortened = copy.deepcopy(config)
        text = shortened.get_text_config()
        depth, text.num_hidden_layers = text.num_hidden_layers, layers
        for name, value in list(vars(text).items()):
            if "layer" in name and isinstance(value, list) and len(value) == depth:
                setattr(text, name, (value * layers)[:layers])
        shortened._attn_implementation = attention
        model: PreTrainedModel = AutoModelForCausalLM.from_config(shortened, dtype=dtype)
        return model

    return build


def adapted(build: Build, lora: LoraConfig) -> Build:
    """As `build`, with the adapters that a training adds.

    peft moves them, which fake tensors do not allow; so the model is made of meta tensors first.
    """

    def build_adapted(layers: int, dtype: torch.dtype) -> PreTrainedModel:
        with unset_fake_temporarily(), torch.device("meta"):
            model = add_adapters(build(layers, torch.float32), lora, 0)
            torch.nn.Module.to(model, dtype)
        return model.to_empty(device=torch.get_default_device())

    return build_adapted
