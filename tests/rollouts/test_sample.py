from __future__ import annotations

import pytest
import torch

from dynolab.data.rows import spaced
from dynolab.data.world.world import WorldConfig, build_world
from dynolab.errors import ConfigError
from dynolab.rollouts.decoding import SampleConfig, sample_responses
from models.tiny import TinyConfig, build_tiny

TOKENIZER = build_world(WorldConfig()).tokenizer()
PROMPTS = ["say :", "what is the colour of one ?", "say : what is the home of the river ?"] * 2


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    tiny = build_tiny(TinyConfig(width=32, layers=2), TOKENIZER)
    with torch.no_grad():
        for weights in tiny.parameters():
            weights.mul_(4)
    return tiny


def test_equal_seeds_give_equal_responses(model: torch.nn.Module) -> None:
    config = SampleConfig(max_new_tokens=8, batch_size=4)
    state = torch.get_rng_state()
    first, again, other = (
        sample_responses(model, TOKENIZER, PROMPTS, config.model_copy(update={"seed": seed}))
        for seed in (0, 0, 1)
    )
    assert first == again != other
    assert torch.equal(state, torch.get_rng_state())
    assert len(first) == len(PROMPTS)


def test_greedy_is_the_argmax_of_the_forward(model: torch.nn.Module) -> None:
    config = SampleConfig(temperature=0, max_new_tokens=1)
    (response,) = sample_responses(model, TOKENIZER, PROMPTS[:1], config)
    with torch.no_grad():
        logits = model(torch.tensor([TOKENIZER(PROMPTS[0])["input_ids"]])).logits[0, -1]
    likeliest = int(logits.argmax())
    assert response.text == spaced(TOKENIZER.decode([likeliest], skip_special_tokens=True))


def test_the_end_of_sequence_ends_a_response(model: torch.nn.Module) -> None:
    ending = build_tiny(TinyConfig(width=32, layers=1), TOKENIZER)
    head = ending.get_output_embeddings()
    head.register_forward_hook(
        lambda _, __, logits: logits.index_fill(-1, torch.tensor([TOKENIZER.eos_token_id]), 1e4)
    )
    (response,) = sample_responses(ending, TOKENIZER, ["say :"], SampleConfig(max_new_tokens=5))
    assert response.finished and not response.text.strip()
    assert all(
        len(s.text.split()) <= 5
        for s in sample_responses(model, TOKENIZER, PROMPTS, SampleConfig(max_new_tokens=5))
    )


def test_mode_is_put_back_and_a_tokenizer_without_end_is_refused(model: torch.nn.Module) -> None:
    model.train()
    sample_responses(model, TOKENIZER, PROMPTS[:1], SampleConfig(max_new_tokens=1))
    assert model.training
    model.eval()
    endless = build_world(WorldConfig()).tokenizer()
    endless.eos_token = None
    with pytest.raises(ConfigError, match="eos_token"):
        sample_responses(model, endless, PROMPTS[:1], SampleConfig())


def test_a_prompt_that_fills_the_context_loses_its_oldest_tokens(model: torch.nn.Module) -> None:
    long = " ".join(["say", ":"] * 50)
    config = SampleConfig(max_new_tokens=8)
    cut, short = sample_responses(model, TOKENIZER, [long, "say :"], config)
    ids, begin = cut.encoded.ids, cut.encoded.prompt_length
    assert begin == 64 - 1 - 8 and len(ids) < 64
    assert ids[0] == TOKENIZER.bos_token_id
    assert list(ids[1:begin]) == TOKENIZER(long)["input_ids"][-(begin - 1) :]
    assert [short] == sample_responses(model, TOKENIZER, ["x", "say :"], config)[1:]
