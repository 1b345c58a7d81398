"""Language models as they lie on disk: loaded or refused, with adapters, of any depth."""

from __future__ import annotations

import json
import os
from pathlib import Path

import peft
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    Gemma3Config,
    MllamaConfig,
    MllamaForConditionalGeneration,
    PreTrainedModel,
)

from dynolab.costs.shape import UNBOUNDED, shape_of
from dynolab.costs.traced import MicroBatch, activation_bytes
from dynolab.data.world.world import WorldConfig, build_world
from dynolab.errors import ConfigError
from models.language import (
    context_length,
    folder_context,
    load_language_model,
    load_tokenizer,
    save_language_model,
)
from models.tiny import TinyConfig, build_tiny
from models.unloaded import builder, read_config
from tasks.base import BaseConfig, resolve_base
from tests.benchmarks.families import FAMILIES, build
from tests.training.small import distance, make_policy, make_tokenizer

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


def test_adapters_that_nothing_merges_are_refused(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    policy = make_policy(tokenizer)
    for content in (policy, tokenizer):
        content.save_pretrained(tmp_path / "base")
    policy.name_or_path = str(tmp_path / "base")
    config = peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    peft.get_peft_model(policy, config).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ConfigError, match="PROMPT_TUNING"):
        load_language_model(tmp_path / "adapter", tokenizer=tokenizer)


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
