"""Adapters are taken apart from exactly the weights that were written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dynolab.errors import ConfigError
from dynolab.training.adapters import ADAPTERS, add_adapters, save_merged, unmerge_adapters
from dynolab.training.config import LoraConfig
from models.language import load_language_model
from models.tiny import TinyConfig, build_tiny
from tests.training.small import make_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    policy = add_adapters(build_tiny(TinyConfig(width=16), make_tokenizer()), LoraConfig(rank=2), 0)
    save_merged(policy, {}, tmp_path)
    return tmp_path


def taken(folder: Path) -> torch.nn.Module:
    return unmerge_adapters(load_language_model(folder / "model"), folder / "adapter")


def test_missing_and_surplus_adapters_are_refused_by_name(folder: Path) -> None:
    taken(folder)
    file = folder / "adapter" / ADAPTERS
    whole = load_file(file)
    first = min(whole)
    for weights, message in (
        ({name: w for name, w in whole.items() if name != first}, f"lacks {first}"),
        (
            whole | {"zzz.lora_A.weight": torch.ones(2, 2)},
            r"has an unexpected zzz\.lora_A\.weight",
        ),
    ):
        save_file(weights, file)
        with pytest.raises(ConfigError, match=f"adapter = .*{message}"):
            taken(folder)


@pytest.mark.parametrize("name", [ADAPTERS, "adapter_config.json"])
def test_damaged_adapters_are_named(folder: Path, name: str) -> None:
    file = folder / "adapter" / name
    half = file.read_bytes()[: file.stat().st_size // 2]
    for content in (half, b'{"peft_type": ["LORA"]}'):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"adapter = .*cannot be read"):
            taken(folder)
