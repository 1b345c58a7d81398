"""Whatever a family does to its logits and its context, against `model(input_ids)`."""

from __future__ import annotations

import logging

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    PreTrainedModel,
)

from dynolab.data.batches import collate
from dynolab.data.packing import share_prompts
from dynolab.errors import ConfigError
from dynolab.likelihood.checked import checks_kept
from dynolab.likelihood.token_logps import ResponseLogits, packing_width, token_logps
from dynolab.rollouts.decoding import ModelGenerator
from dynolab.rollouts.generator import SampleConfig
from tests.forces.families import GROUPED
from tests.forces.small_models import COMMON, VOCABULARY
from tests.likelihood.test_packed import SHAPES, one_by_one, sequences_of
from tests.training.small import make_tokenizer

TAILS = {
    "cohere": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 4.0},
    "gemma2": {"final_logit_softcapping": 2.0, "head_dim": 8, "sliding_window": 4},
}


def family(name: str, dtype: torch.dtype = torch.float32, **more: object) -> PreTrainedModel:
    torch.manual_seed(0)
    settings = {key: value for key, value in GROUPED.items() if key != "attn_implementation"}
    config = AutoConfig.for_model(name, **{**settings, "pad_token_id": 0, **more})
    return AutoModelForCausalLM.from_config(config).to(dtype).eval()


def rwkv() -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "rwkv", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, context_length=64
    )
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("name", TAILS)
@torch.no_grad()
def test_logits_are_those_that_the_models_own_forward_ends_with(name: str) -> None:
    model = family(name, **TAILS[name])
    sequences, _ = sequences_of(SHAPES["several prompts"])
    logps = ResponseLogits(model)(collate(sequences, 0), token_logps)
    torch.testing.assert_close(logps, one_by_one(model, sequences), atol=1e-5, rtol=0)


def test_a_recurrent_model_shares_no_prompts_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        logits = ResponseLogits(rwkv())
    assert packing_width(logits) is None
    (packed,) = (
        record.getMessage()
        for record in caplog.records
        if record.name == "dynolab.likelihood.layouts"
    )
    assert "RwkvForCausalLM" in packed and "packed" in packed and "nats" in packed
    sequences, _ = sequences_of(SHAPES["a pair"])
    batch = share_prompts(collate(sequences, 0), [[0, 1]])
    with pytest.raises(ConfigError, match="RwkvForCausalLM"):
        logits(batch)


def test_a_recurrent_model_without_a_cache_of_keys_is_not_sampled_from() -> None:
    with pytest.raises(ConfigError, match=r"RwkvForCausalLM.*cannot be sampled in batches"):
        ModelGenerator(rwkv(), make_tokenizer(), context=64)


@pytest.mark.parametrize("name", TAILS)
def test_sampled_log_probabilities_are_those_of_the_models_own_forward(name: str) -> None:
    model = family(name, **TAILS[name])
    ((sampled,),) = ModelGenerator(model, make_tokenizer()).generate(
        [[5, 6, 7]], SampleConfig(max_new_tokens=4)
    )
    truth = one_by_one(model, [sampled.encoded])
    torch.testing.assert_close(torch.tensor(sampled.logps), truth, atol=1e-5, rtol=0)


def test_what_was_measured_is_kept_for_the_manifest() -> None:
    model = family("llama")
    with checks_kept() as checks:
        ResponseLogits(model)
        ResponseLogits(model)
    (figures,) = checks.values()
    assert list(checks) == ["LlamaForCausalLM sdpa float32"]
    assert figures["alone"] <= figures["tolerance"]
    with checks_kept() as checks:
        ResponseLogits(rwkv())
    assert checks["RwkvForCausalLM eager float32"]["packed"] > 0.01


def test_a_model_that_looks_ahead_is_refused_by_name_and_difference() -> None:
    model = BertLMHeadModel(BertConfig(**COMMON))
    with pytest.raises(ConfigError, match=r"BertLMHeadModel.*differ by .* nats.*causal"):
        ResponseLogits(model)


def test_the_model_is_left_in_the_mode_it_was_in() -> None:
    model = family("llama").train()
    model.model.layers[0].eval()
    ResponseLogits(model)
    assert model.training and not model.model.layers[0].training
    assert type(model.model).__name__ == "LlamaModel"
