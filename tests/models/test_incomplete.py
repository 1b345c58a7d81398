"""A folder is loaded as what its files say, whole, or it is refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from dynolab.errors import ConfigError
from models.language import context_length, load_language_model, load_tokenizer
from tasks.base import BaseConfig, resolve_base
from tests.training.small import distance, make_tokenizer

SHAPE = {
    "vocab_size": 44,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
Weights = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change_weights(folder: Path, change: Callable[[Weights], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def change_settings(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def shard(folder: Path, name: str = "part.safetensors", home: Path | None = None) -> Path:
    """Moves the weights into one shard, which the index calls `name`."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    file = (home or folder) / Path(name).name
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, file, {"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(weights, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return file


def revision(folder: Path) -> str | None:
    return resolve_base(BaseConfig(source=str(folder))).revision


def assert_refused(folder: Path, message: str) -> None:
    """Asserts that loading the model and hashing its folder both raise this message."""
    for load in (load_language_model, revision):
        with pytest.raises(ConfigError, match=message):
            load(folder)


def test_a_missing_head_is_refused_and_not_initialised_at_random(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop("lm_head.weight"))
    with pytest.raises(ConfigError, match=r"lacks lm_head\.weight; give the whole model"):
        load_language_model(folder)


def test_a_tied_head_does_not_count_as_missing(tmp_path: Path) -> None:
    LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)).save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    model = load_language_model(tmp_path)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # Missing layers, surplus layers, other shapes.
        ({"num_hidden_layers": 1}, r"has weights that .*model\.layers\.1.* and 4 more"),
        ({"num_hidden_layers": 3}, r"lacks model\.layers\.2\."),
        ({"intermediate_size": 24}, r"mlp\.down_proj\.weight \(\[16, 16\], not \[16, 24\]\)"),
        # Huge counts, refused before anything is built.
        *(
            ({name: 10**9}, f"{name} = 1000000000, but the weights are 21 tensors")
            for name in ("num_hidden_layers", "num_labels", "num_attention_heads")
        ),
        # A model larger than its weights, refused before memory is allocated.
        ({"vocab_size": 10**8}, "give the config.json that belongs to them"),
        ({"hidden_size": 10**7}, "give the config.json that belongs to them"),
        # Settings with which the model cannot be measured.
        ({"is_causal": False}, "its tokens attend to later ones"),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding_window"),
        ({"pad_token_id": 10**6}, "Padding_idx"),
        ({"experts_implementation": "none"}, "experts_implementation"),
    ],
)
def test_settings_that_do_not_belong_to_the_weights_are_refused(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    change_settings(folder, **changes)
    with pytest.raises(ConfigError, match=message):
        load_language_model(folder)


def test_weights_that_transformers_ignores_are_allowed(folder: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_weights(folder, lambda weights: weights.update({name: torch.ones(4)}))
    load_language_model(folder)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "name", ["_attn_implementation", "attn_implementation", "_attn_implementation_internal"]
)
@pytest.mark.parametrize("written", ["eager", "sdpa", "flash_attention_2"])
def test_the_studys_attention_wins(folder: Path, attention: str, name: str, written: str) -> None:
    change_settings(folder, **{name: written})
    config = load_language_model(folder, attention=attention).config
    assert config._attn_implementation == attention


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_the_callers_dtype_wins(folder: Path, name: str) -> None:
    change_settings(folder, **{name: "bfloat16"})
    assert {p.dtype for p in load_language_model(folder).parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quantization_config", {"quant_method": "gptq", "bits": 4}),
        ("transformers_weights", "other.safetensors"),
        ("fusion_config", {"mlp": True}),
    ],
)
def test_settings_that_would_load_another_model_are_refused(
    folder: Path, name: str, value: object
) -> None:
    change_settings(folder, **{name: value})
    assert_refused(folder, f"config.json sets {name}: ")


def test_adapters_without_their_base_are_refused(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere"}')
    assert_refused(folder, "no such base model")


def test_shards_that_transformers_prefers_to_whole_weights_are_refused(folder: Path) -> None:
    (folder / "shard-00001-model-00001-of-00001.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="ranks' shards"):
        load_language_model(folder)


def test_shards_in_the_folder_are_loaded_and_belong_to_the_key(folder: Path) -> None:
    whole = load_language_model(folder).state_dict()
    file = shard(folder, "deep/part.safetensors", folder / "deep")
    assert distance(load_language_model(folder).state_dict(), whole) == 0.0
    before = revision(folder)
    weights = load_file(file)
    weights["lm_head.weight"] += 1
    save_file(weights, file, {"format": "pt"})
    assert revision(folder) != before


@pytest.mark.parametrize("name", ["../outside/w.safetensors", "{}/outside/w.safetensors", "a/../w"])
def test_shards_outside_the_folder_are_refused(folder: Path, name: str) -> None:
    shard(folder, name.format(folder.parent), folder.parent / "outside")
    assert_refused(folder, "which is outside the folder")


@pytest.mark.parametrize("name", ["model.safetensors", "part.safetensors", "config.json"])
def test_links_out_of_the_folder_are_refused(folder: Path, name: str) -> None:
    if name == "part.safetensors":
        shard(folder)
    outside = folder.parent / "outside"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    assert_refused(folder, r"is a link to .*, outside the folder")


def test_a_snapshot_of_the_hubs_cache_is_a_folder(folder: Path) -> None:
    cache = folder.parent / "models--a--b"
    (cache / "blobs").mkdir(parents=True)
    (cache / "snapshots").mkdir()
    folder = folder.rename(cache / "snapshots/1")
    whole = revision(folder)
    for file in list(folder.iterdir()):
        file.rename(cache / "blobs" / file.name)
        file.symlink_to(f"../../blobs/{file.name}")
    load_language_model(folder)
    assert revision(folder) == whole


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "additional_chat_templates/tools.jinja",
        "model.safetensors",
    ],
)
def test_the_key_covers_every_file_that_is_read(folder: Path, name: str) -> None:
    before = revision(folder)
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    with file.open("ab") as content:
        content.write(b"\n")
    assert revision(folder) != before


def truncated(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": truncated,
    "empty": lambda file: os.truncate(file, 0),
    "binary": lambda file: file.write_bytes(bytes(range(256)) * 40),
    "deep": lambda file: file.write_text("[" * 100_000),
    "deep object": lambda file: file.write_text('{"a":' * 100_000),
    "list": lambda file: file.write_text("[]"),
    "number": lambda file: file.write_text("1e999"),
    "huge number": lambda file: file.write_text("9" * 10_000),
    "wrong types": lambda file: file.write_text(
        json.dumps({name: [{"a": 1}] for name in json.loads(file.read_text())})
    ),
    "nulls": lambda file: file.write_text(json.dumps(dict.fromkeys(json.loads(file.read_text())))),
    "surrogates": lambda file: file.write_text('{"model_type": "\\ud800", "version": "\\ud800"}'),
    "folder": lambda file: (file.unlink(), file.mkdir()),
    "loop": lambda file: (file.unlink(), file.symlink_to(file.name)),
}


READ = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
OF_JSON = ("wrong types", "nulls")
"""Damages that are made of a file's own JSON, which weights are not."""


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (name, damage)
        for name in READ
        for damage in DAMAGES
        if name != "model.safetensors" or damage not in OF_JSON
    ],
)
def test_a_damaged_file_is_named_or_does_no_harm(folder: Path, name: str, damage: str) -> None:
    load: Callable[[Path], object] = (
        load_tokenizer if name.startswith("tokenizer") else load_language_model
    )
    if name == "model.safetensors.index.json":
        shard(folder)
    DAMAGES[damage](folder / name)
    refused = []
    for read in (load, revision):
        try:
            read(folder)
        except ConfigError as error:
            refused.append(str(error))
    assert all(str(folder) in message for message in refused)
    if name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert refused


@pytest.mark.parametrize(
    "changes",
    [
        {"return_dict": False},
        {"output_hidden_states": True},
        {"output_attentions": True},
        {"torchscript": True},
        {"use_cache": False},
        {"is_encoder_decoder": True},
        {"pad_token_id": -5},
    ],
    ids=str,
)
def test_settings_of_outputs_change_nothing(folder: Path, changes: dict[str, Any]) -> None:
    ids = torch.arange(9)[None]
    with torch.no_grad():
        expected = load_language_model(folder)(ids).logits
        change_settings(folder, **changes)
        model = load_language_model(folder)
        given = model(ids, use_cache=False)
    assert torch.equal(given.logits, expected)
    assert set(given) == {"logits"}
    assert model.get_input_embeddings().padding_idx is None


def test_a_context_below_one_token_is_refused(folder: Path) -> None:
    change_settings(folder, max_position_embeddings=-1)
    with pytest.raises(ConfigError, match="max_length = -1"):
        context_length(load_language_model(folder))
