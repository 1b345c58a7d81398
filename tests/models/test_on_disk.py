"""Models as they lie on disk: adapters, multimodal checkpoints, any depth, eager attention."""

from __future__ import annotations

import json
from pathlib import Path

import peft
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3Config,
    MllamaConfig,
    MllamaForConditionalGeneration,
    PreTrainedModel,
)

from dynolab.costs.shape import UNBOUNDED, shape_of
from dynolab.costs.traced import MicroBatch, activation_bytes
from models.language import folder_context, load_language_model, load_tokenizer
from models.unloaded import builder, read_config
from tasks.base import BaseConfig, resolve_base
from tests.benchmarks.models import FAMILIES, build
from tests.training.small import make_policy, make_tokenizer

IDS = torch.arange(3, 12)[None]


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_are_merged_into_their_base(dora: bool, tmp_path: Path) -> None:
    """The base is named from the adapters' folder; its content and theirs make the revision."""
    tokenizer = make_tokenizer()
    policy = make_policy(tokenizer)
    for content in (policy, tokenizer):
        content.save_pretrained(tmp_path / "base")
    config = peft.LoraConfig(
        r=2,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
        init_lora_weights=False,
        use_dora=dora,
    )
    adapted = peft.get_peft_model(policy, config)
    folder = tmp_path / "adapter"
    adapted.save_pretrained(folder)
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = "../base"
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    merged = load_language_model(folder, tokenizer=load_tokenizer(folder))
    torch.testing.assert_close(logits(merged), logits(adapted), rtol=1e-4, atol=1e-4)
    assert all(weight.requires_grad for weight in merged.parameters())
    assert folder_context(folder) == folder_context(tmp_path / "base")
    before = resolve_base(BaseConfig(source=str(folder))).revision
    policy.config.save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "generation_config.json").write_text("{}")
    assert resolve_base(BaseConfig(source=str(folder))).revision != before


def test_text_model_of_a_multimodal_checkpoint(tmp_path: Path) -> None:
    text = AutoConfig.for_model(*FAMILIES["gemma3"][:1], **FAMILIES["gemma3"][1])
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = Gemma3Config(text_config=text.to_dict(), vision_config=vision, mm_tokens_per_image=4)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    loaded = load_language_model(tmp_path)
    torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=1e-6)


def test_text_model_without_the_weights_of_other_parts(tmp_path: Path) -> None:
    """Where transformers has a text model of its own, a checkpoint's images have no place in it."""
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**size, "vocab_size": 64, "intermediate_size": 32, "num_key_value_heads": 1}
    text |= {"cross_attention_layers": [1], "pad_token_id": 0}
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    vision |= {"num_global_layers": 1, "image_size": 28, "intermediate_layers_indices": [0]}
    config = MllamaConfig(text_config=text, vision_config=vision | {"vision_output_dim": 64})
    model = MllamaForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    loaded = load_language_model(tmp_path)
    assert type(loaded) is not type(model)
    torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "bloom", "mpt", "gpt_neo", "llama", "qwen3"])
def test_a_plan_traces_models_of_any_depth_and_attention(name: str, tmp_path: Path) -> None:
    build(name).save_pretrained(tmp_path)
    config = read_config(str(tmp_path))
    make = builder(config)
    depth = config.get_text_config().num_hidden_layers
    with torch.device("meta"):
        shape = shape_of(make(depth, torch.float32))
    assert shape.context == folder_context(tmp_path)
    assert name != "bloom" or shape.context == UNBOUNDED
    assert activation_bytes(make, depth, MicroBatch(2, 9, 6)).most > 0
