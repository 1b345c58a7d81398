"""Activation checkpointing changes memory alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, OPTConfig

from dynolab.errors import ConfigError
from dynolab.training.adapters import activations_checkpointed, prepare_checkpointing
from tests.training.small import make_policy, make_tokenizer, run_small, settings


def trained(inputs: Path, folder: Path, **engine: object) -> dict[str, torch.Tensor]:
    job = run_small(inputs, folder, settings(engine={"kind": "plain", "ranks": 1, **engine}))
    return load_file(job.output / "model" / "model.safetensors")


def test_the_trained_weights_are_the_same_to_the_bit(inputs: Path, tmp_path: Path) -> None:
    plain = trained(inputs, tmp_path / "plain")
    checkpointed = trained(inputs, tmp_path / "checkpointed", checkpoint_activations=True)
    assert plain.keys() == checkpointed.keys()
    assert all(torch.equal(plain[name], checkpointed[name]) for name in plain)


def kept_numbers(model: torch.nn.Module) -> int:
    """How many numbers a forward keeps for its backward pass, weights aside."""
    weights = {weight.data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(torch.arange(40)[None] % 40).logits.sum()
    output.backward()
    return sum(kept.values())


def test_layers_keep_their_inputs_alone_while_it_is_open() -> None:
    model = make_policy(make_tokenizer())
    whole = kept_numbers(model)
    prepare_checkpointing(model)
    with activations_checkpointed(model):
        assert kept_numbers(model) < whole / 2
    assert not any(module.training for module in model.modules())
    assert kept_numbers(model) == whole


def test_a_layer_that_would_drop_out_activations_is_refused() -> None:
    config = OPTConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, ffn_dim=32, num_attention_heads=2
    )
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ConfigError, match=r"OPTDecoderLayer would drop out .* dropout = 0.1"):
        prepare_checkpointing(model)


def test_dropout_modules_within_layers_stay_off() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2)).eval()
    ids = torch.arange(12)[None]
    expected = model(ids).logits
    prepare_checkpointing(model)
    with activations_checkpointed(model):
        assert torch.equal(model(ids).logits, expected)
