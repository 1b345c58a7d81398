from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from dynolab.data.batches import collate
from dynolab.errors import ConfigError
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.rollouts.decoding import ModelGenerator, position_keys
from dynolab.rollouts.generator import SampleConfig, flat
from tests.rollouts.test_noise import splitmix
from tests.training.small import make_tokenizer

TOKENIZER = make_tokenizer()
CONTEXT = 24
SHAPE = {"vocab_size": len(TOKENIZER), "initializer_range": 0.3}


def neox() -> PreTrainedModel:
    return GPTNeoXForCausalLM(
        GPTNeoXConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=CONTEXT,
            **SHAPE,
        )
    )


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            **SHAPE,
        )
    )


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, **SHAPE))


@pytest.fixture(params=[neox, llama, gpt2])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(0)
    return request.param().eval()


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [
        [1, *(rng.randrange(4, len(TOKENIZER)) for _ in range(rng.randint(1, 12)))]
        for _ in range(count)
    ]


def test_a_response_does_not_depend_on_what_is_drawn_beside_it(model: PreTrainedModel) -> None:
    generator, asked = ModelGenerator(model, TOKENIZER), prompts(6)
    config = SampleConfig(max_new_tokens=8, batch_size=16)
    whole = generator.generate(asked, config, samples=3, step=2)
    alone = generator.generate(
        asked, config.model_copy(update={"batch_size": 1}), samples=3, step=2
    )
    assert whole == alone
    numbers = [4, 1]
    some = generator.generate(
        [asked[number] for number in numbers], config, samples=2, step=2, numbers=numbers
    )
    assert some == [whole[number][:2] for number in numbers]


def test_seed_step_prompt_and_sample_each_draw_anew(model: PreTrainedModel) -> None:
    generator, asked = ModelGenerator(model, TOKENIZER), prompts(1) * 2
    config = SampleConfig(max_new_tokens=8)
    first, second = generator.generate(asked, config, samples=6)
    assert first != second
    assert len({sample.response for sample in first}) > 1
    for other, step in ((config.model_copy(update={"seed": 1}), 0), (config, 1)):
        assert generator.generate(asked, other, samples=6, step=step) != [first, second]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_the_cache_and_the_padding_change_nothing(
    model: PreTrainedModel, temperature: float
) -> None:
    config = SampleConfig(temperature=temperature, max_new_tokens=30, batch_size=5, seed=1)
    asked = prompts(7, seed=3)
    drawn = ModelGenerator(model, TOKENIZER).generate(asked, config, step=4)
    for number, (prompt, (sample,)) in enumerate(zip(asked, drawn, strict=True)):
        limit = min(config.max_new_tokens, CONTEXT - len(prompt))
        assert list(sample.response) == _obvious(
            model, prompt, temperature, position_keys(1, 4, number, 0, limit).tolist()
        )
        assert sample.finished == (sample.response[-1] == TOKENIZER.eos_token_id)


@torch.no_grad()
def _obvious(
    model: PreTrainedModel, prompt: list[int], temperature: float, keys: list[int]
) -> list[int]:
    """One forward over everything for every token, no cache, no padding."""
    ids = list(prompt)
    for key in keys:
        logits = model(torch.tensor([ids])).logits[0, -1].double()
        if temperature:
            noise = -np.log(-np.log(splitmix(key, len(logits))))
            ids.append(int((logits / temperature + torch.from_numpy(noise)).argmax()))
        else:
            ids.append(int(logits.argmax()))
        if ids[-1] == TOKENIZER.eos_token_id:
            break
    return ids[len(prompt) :]


def test_logps_are_those_that_training_sees(model: PreTrainedModel) -> None:
    config = SampleConfig(temperature=0.8, max_new_tokens=9, batch_size=3)
    drawn = flat(ModelGenerator(model, TOKENIZER).generate(prompts(5), config, samples=2))
    batch = collate([sample.encoded for sample in drawn], 0)
    with torch.no_grad():
        logits = ResponseLogits(model)(batch) / config.temperature
    expected = torch.tensor([logp for sample in drawn for logp in sample.logps])
    torch.testing.assert_close(token_logps(logits, batch), expected, atol=1e-5, rtol=1e-5)


def test_responses_end_at_the_end_of_the_context(model: PreTrainedModel) -> None:
    asked = [[1, *range(4, 4 + size)] for size in (CONTEXT - 2, 4)]
    long, short = flat(
        ModelGenerator(model, TOKENIZER).generate(
            asked, SampleConfig(temperature=0.5, max_new_tokens=99)
        )
    )
    assert len(long.encoded.ids) == CONTEXT and not long.finished
    assert len(short.encoded.ids) <= CONTEXT


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            [[1, 5], [1] * CONTEXT, [1] * (CONTEXT + 5)],
            r"2 of 3 fill the context of 24 tokens.*number 1",
        ),
        ([[]], "at least one token"),
    ],
    ids=["full", "empty"],
)
def test_prompts_that_fill_the_context_or_have_no_token_are_refused(
    model: PreTrainedModel, asked: list[list[int]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelGenerator(model, TOKENIZER).generate(asked, SampleConfig())


def test_a_stop_text_ends_a_response_and_is_not_part_of_its_text(model: PreTrainedModel) -> None:
    generator, asked = ModelGenerator(model, TOKENIZER), prompts(4)
    config = SampleConfig(max_new_tokens=10)
    for number, (free,) in enumerate(generator.generate(asked, config)):
        words = free.text.split()
        if len(words) < 3:
            continue
        stop = f"{words[1]} {words[2]}"
        stopping = config.model_copy(update={"stop": ("never", stop)})
        ((ended,),) = generator.generate([asked[number]], stopping, numbers=[number])
        texts = [
            TOKENIZER.decode(free.response[:length], skip_special_tokens=True)
            for length in range(len(free.response) + 1)
        ]
        length = next(length for length, text in enumerate(texts) if stop in text)
        assert ended.finished
        assert ended.response == free.response[:length]
        assert ended.text == texts[length][: texts[length].index(stop)]


def test_an_empty_stop_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="stop"):
        SampleConfig(stop=("a", ""))


def test_a_diverged_model_is_refused(model: PreTrainedModel) -> None:
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    for temperature in (0.0, 1.0):
        with pytest.raises(ConfigError, match="not finite"):
            ModelGenerator(model, TOKENIZER).generate(
                prompts(1), SampleConfig(temperature=temperature)
            )
