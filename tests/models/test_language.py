from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers
from transformers import BloomConfig, BloomForCausalLM

from dynolab.data.world.world import WorldConfig, build_world
from dynolab.errors import ConfigError
from models.language import (
    context_length,
    load_language_model,
    load_tokenizer,
    save_language_model,
)
from models.tiny import TinyConfig, build_tiny
from tests.training.small import distance

REAL = os.environ.get("DYNOLAB_TEST_DATA")
TOKENIZER = build_world(WorldConfig()).tokenizer()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny = build_tiny(TinyConfig(width=32, layers=1), TOKENIZER)
    save_language_model(tiny, TOKENIZER, tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_model_comes_back_the_same(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    model = load_language_model(folder, attention="eager", tokenizer=tokenizer)
    saved = build_tiny(TinyConfig(width=32, layers=1), TOKENIZER)
    assert distance(model.state_dict(), saved.state_dict()) == 0.0
    text = "what is the home of"
    assert tokenizer(text)["input_ids"] == TOKENIZER(text)["input_ids"]
    assert tokenizer.eos_token_id == TOKENIZER.eos_token_id
    assert context_length(model) == 64 and not model.training
    assert model.config._attn_implementation == "eager"


def test_a_model_without_sdpa_is_loaded_with_eager_attention_and_says_so(tmp_path: Path) -> None:
    config = BloomConfig(vocab_size=50, hidden_size=32, n_layer=1, n_head=4)
    BloomForCausalLM(config).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="BloomForCausalLM has no sdpa attention"):
        model = load_language_model(tmp_path)
    assert model.config._attn_implementation == "eager"


def test_dtype(folder: Path) -> None:
    assert load_language_model(folder, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("pickled", [False, True])
def test_a_folder_without_safetensors_is_refused_even_with_pickled_weights(
    folder: Path, pickled: bool
) -> None:
    (folder / "model.safetensors").unlink()
    if pickled:
        model = build_tiny(TinyConfig(width=32, layers=1), TOKENIZER)
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"no \*\.safetensors weights"):
        load_language_model(folder)


def test_code_in_a_model_folder_is_not_run(folder: Path) -> None:
    mark = folder / "ran"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil: pass\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoModelForCausalLM": "evil.Evil", "AutoConfig": "evil.Evil"}}
    (folder / "config.json").write_text(json.dumps(config))
    load_language_model(folder)
    assert not mark.exists()


@pytest.mark.parametrize("source", ["./none", "/no/such/folder", "~/none", "a/b/c"])
def test_unknown_folders(source: str) -> None:
    for load in (load_language_model, load_tokenizer):
        with pytest.raises(ConfigError, match="no such folder"):
            load(source)
    with pytest.raises(ConfigError, match="no such folder"):
        load_language_model(Path("none"))


def test_a_folder_without_configuration_or_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_language_model(tmp_path)
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_of_another_model(folder: Path) -> None:
    larger = build_world(WorldConfig(entities=200)).tokenizer()
    with pytest.raises(ConfigError, match="embedding has"):
        load_language_model(folder, tokenizer=larger)


def test_a_tokenizer_is_its_file_and_not_what_its_class_would_build(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "<end>": 1, "▁": 2, "a": 3}
    own = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    own.normalizer = normalizers.Replace(" ", "▁")
    own.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "LlamaTokenizer", "eos_token": "<end>"})
    )
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer(" aé")["input_ids"] == [2, 3, 0]
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 1
    tokenizer.save_pretrained(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again")(" aé")["input_ids"] == [2, 3, 0]


def test_a_special_token_is_itself_after_a_word_and_after_a_space(tmp_path: Path) -> None:
    """As in the model families' own classes, where the file would have it normalised, too."""
    own = Tokenizer(models.BPE(vocab={"<end>": 0, "▁": 1, "a": 2, "<": 3, ">": 4}, merges=[]))
    own.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    own.add_special_tokens([AddedToken("<end>", normalized=True)])
    own.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer(["a<end>", "a <end>"])["input_ids"] == [[1, 2, 0], [1, 2, 1, 0]]


@pytest.mark.skipif(not REAL, reason="DYNOLAB_TEST_DATA names no folder of real models")
def test_a_real_model() -> None:
    source = Path(str(REAL)) / "models/tinystories-656k"
    tokenizer = load_tokenizer(source)
    model = load_language_model(source, tokenizer=tokenizer)
    assert context_length(model) == 512
    story = "Once upon a time, there was a little girl named Lily. She liked to play outside."
    ids = torch.tensor([tokenizer(story)["input_ids"]])
    with torch.no_grad():
        nats = float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)
    assert nats / len(story) < 0.8
