"""Samples from any transformers causal language model in this process, with a KV cache.

Its random numbers belong to a response: they are the same for any batch and device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from dynolab.data.encode import Encoded, cut_left, encode_prompt
from dynolab.data.rows import Turn
from dynolab.errors import ConfigError
from dynolab.likelihood.decoder import next_logits, pad_left
from dynolab.likelihood.layouts import check_decoding
from dynolab.likelihood.token_logps import causal_model
from dynolab.rollouts.generator import (
    SampleConfig,
    Sampled,
    check_prompts,
    end_token,
    read_response,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_STEP = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed number: 2⁶⁴ over the golden ratio
_MIXES = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))


@dataclass
class _Draft:
    """A response being generated."""

    prompt: Sequence[int]
    limit: int
    keys: Sequence[int]
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    finished: bool = False

    @property
    def done(self) -> bool:
        """Whether the response ended by itself or reached its limit."""
        return self.finished or len(self.ids) == self.limit


class ModelGenerator:
    """Samples responses token by token from a model in this process.

    **Arguments:**

    - `model`: its full weights must be on this rank (`Engine.gathered`).
    - `tokenizer`: the model's.
    - `context`: longest prompt plus response, in tokens; by default the model's own.

    A token is `argmax_v log π(v)/T + g_v`, g the Gumbel noise of its response and position
    (`position_keys`, `gumbel`). Neither batch nor rank changes it, unless rounding of the logits
    decides between two tokens.

    **Raises:** `ConfigError` for a tokenizer without an end-of-sequence token, for a model without
    `max_position_embeddings` if `context` is not given, and for a model that decodes incorrectly
    from its cache (`check_decoding`).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        context: int | None = None,
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._eos = end_token(tokenizer)
        self._special = frozenset(tokenizer.all_special_ids)
        text_config = causal_model(model).config.get_text_config()  # type: ignore[union-attr,operator]
        limit = context or getattr(text_config, "max_position_embeddings", None)
        if limit is None:
            raise ConfigError(
                "context", None, "the model's config has no max_position_embeddings; pass context"
            )
        self._context = int(limit)
        check_decoding(causal_model(model))

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        config: SampleConfig,
        *,
        samples: int = 1,
        step: int = 0,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Sampled]]:
        """See `Generator.generate`; restores the model's train or eval mode."""
        check_prompts(prompts, self._context)
        prompt_numbers = range(len(prompts)) if numbers is None else numbers
        drafts = []
        for prompt, number in zip(prompts, prompt_numbers, strict=True):
            limit = min(config.max_new_tokens, self._context - len(prompt))
            for sample in range(samples):
                keys = position_keys(config.seed, step, number, sample, limit)
                drafts.append(_Draft(prompt, limit, keys.tolist()))
        training = self._model.training
        self._model.eval()
        try:
            # Longest first: little padding, and running out of memory happens at once.
            order = sorted(drafts, key=lambda draft: -len(draft.prompt))
            for start in range(0, len(order), config.batch_size):
                self._grow(order[start : start + config.batch_size], config)
        finally:
            self._model.train(training)
        sampled = [self._read(draft, config) for draft in drafts]
        return [sampled[start : start + samples] for start in range(0, len(sampled), samples)]

    def _grow(self, drafts: list[_Draft], config: SampleConfig) -> None:
        """Samples tokens until every draft is done; drops finished drafts from the batch."""
        # Drafts of one prompt share its prefill.
        prompts = list({id(draft.prompt): draft.prompt for draft in drafts}.values())
        row_of = {id(prompt): row for row, prompt in enumerate(prompts)}
        ids, mask = pad_left(prompts, self._eos)
        causal = causal_model(self._model)
        logits, cache = next_logits(causal, ids, mask, None)
        rows = [row_of[id(draft.prompt)] for draft in drafts]
        logits, mask = logits[rows], mask[rows]
        cache.batch_select_indices(torch.tensor(rows, device=logits.device))
        while True:
            self._draw(logits, drafts, config)
            rows = [row for row, draft in enumerate(drafts) if not draft.done]
            if not rows:
                return
            if len(rows) < len(drafts):
                cache.batch_select_indices(torch.tensor(rows, device=logits.device))
                drafts, mask = [drafts[row] for row in rows], mask[rows]
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            last = torch.tensor([[draft.ids[-1]] for draft in drafts])
            logits, cache = next_logits(causal, last, mask, cache)

    def _draw(
        self, logits: Float[Tensor, "rows vocabulary"], drafts: list[_Draft], config: SampleConfig
    ) -> None:
        """Adds one token to every draft."""
        logps = torch.log_softmax(logits.double() / (config.temperature or 1.0), dim=-1)
        if config.temperature:
            keys = torch.tensor([draft.keys[len(draft.ids)] for draft in drafts])
            noise = gumbel(keys.to(logits.device), logits.shape[-1])
            tokens = (logps + noise).argmax(-1, keepdim=True)
        else:
            tokens = logps.argmax(-1, keepdim=True)
        if not bool(logps.amax(-1).isfinite().all()):
            raise ConfigError(
                "model",
                "logits that are not finite",
                "cannot sample from a model whose training diverged; use an earlier checkpoint",
            )
        pairs = zip(tokens[:, 0].tolist(), logps.gather(-1, tokens)[:, 0].tolist(), strict=True)
        for draft, (token, logp) in zip(drafts, pairs, strict=True):
            draft.ids.append(token)
            draft.logps.append(logp)
            draft.finished = token == self._eos or self._stops(draft.ids, config.stop)

    def _stops(self, ids: Sequence[int], stop: Sequence[str]) -> bool:
        """Whether a stop text just appeared; it spans at most as many tokens as it has bytes."""
        if not stop:
            return False
        visible = [token for token in ids if token not in self._special]
        tail = visible[-max(len(stop_text.encode()) for stop_text in stop) :]
        return read_response(self._tokenizer, tail, stop)[1]

    def _read(self, draft: _Draft, config: SampleConfig) -> Sampled:
        text, _ = read_response(self._tokenizer, draft.ids, config.stop)
        encoded = Encoded((*draft.prompt, *draft.ids), len(draft.prompt))
        return Sampled(encoded, text, draft.finished, tuple(draft.logps))


def sample_responses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    config: SampleConfig,
    turns: Sequence[Turn | None] | None = None,
) -> list[Sampled]:
    """Samples one response per prompt, in order, from the full distribution (no top-k, no nucleus).

    Prompts are encoded as for training; one that fills the context loses its oldest tokens, as
    under `truncate_left`. The responses' texts go on where their prompts end, with the blank that
    may stand there. Equal seeds give equal responses.

    **Arguments:** `turns`: those of the prompts' rows; by default prompts are plain texts.

    **Raises:** `ConfigError` for a tokenizer without an end-of-sequence token.
    """
    # Leaves room for the end-of-sequence that encoding adds to a sampled answer.
    context = int(model.config.max_position_embeddings) - 1
    generator = ModelGenerator(model, tokenizer, context)
    room = min(config.max_new_tokens, context // 2)
    requests = list(zip(prompts, turns or [None] * len(prompts), strict=True))
    encoded = []
    for prompt, turn in requests:
        ids: Sequence[int] = encode_prompt(tokenizer, prompt, turn)
        if len(ids) >= context:
            ids = cut_left(tokenizer, ids, len(ids) + room - context)
        encoded.append(ids)
    samples = chain.from_iterable(generator.generate(encoded, config))
    continued = []
    for (_, turn), sample in zip(requests, samples, strict=True):
        continued.append(_continued(tokenizer, sample, turn))
    return continued


def _continued(tokenizer: PreTrainedTokenizerBase, sample: Sampled, turn: Turn | None) -> Sampled:
    """A response whose text begins with the blank that its first token stands for.

    It ends with its turn, whose end may be another token than end-of-sequence.
    """
    ids, length = list(sample.encoded.ids), sample.encoded.prompt_length
    ends = tokenizer(turn[1].strip(), add_special_tokens=False)["input_ids"] if turn else []
    if ends and ends[0] in ids[length:]:
        ids = ids[: ids.index(ends[0], length)]
        text = str(tokenizer.decode(ids[length:], skip_special_tokens=True))
        sample = replace(sample, text=text, finished=True)
    before = str(tokenizer.decode(ids[:length], skip_special_tokens=True))
    after = str(tokenizer.decode(ids, skip_special_tokens=True))
    start = after.find(sample.text, len(before)) if after.startswith(before) else -1
    return sample if start < 0 else replace(sample, text=after[len(before) : start] + sample.text)


def position_keys(
    seed: int, step: int, prompt: int, sample: int, count: int
) -> Int[ndarray, " positions"]:
    """A random key for every token of one response.

    Philox is counter-based: the keys depend only on the first four arguments (Salmon et al.,
    *Parallel random numbers: as easy as 1, 2, 3*, 2011), and fewer keys are a prefix of more.
    """
    stream = np.random.Philox(np.random.SeedSequence([seed, step, prompt, sample]))
    return stream.random_raw(count).view(np.int64)


def gumbel(keys: Int[Tensor, " rows"], vocabulary: int) -> Float[Tensor, "rows vocabulary"]:
    """Standard Gumbel noise `−log(−log u)` for every token of every row, from the row's key alone.

    Token v's u is the (v + 1)-th output of SplitMix64 started at the key (Steele, Lea & Flood,
    *Fast splittable pseudorandom number generators*, 2014): stateless, so the same for any batch
    and device. `argmax_v log p_v + g_v` is a sample from p, and it is more robust to rounding of p
    than inverse-CDF sampling: the token changes with a probability of the order of the rounding,
    not of the rounding times the number of tokens.
    """
    counter = torch.arange(1, vocabulary + 1, device=keys.device) * _STEP
    bits = keys[:, None] + counter
    for shift, factor in _MIXES:
        bits = _mixed(bits, shift).mul_(factor)
    # 52 bits, so that adding 0.5 is exact and u is neither 0 nor 1.
    uniform = _shifted(_mixed(bits, 31), 12).double().add_(0.5).mul_(2.0**-52)
    return uniform.log_().neg_().log_().neg_()


def _mixed(bits: Int[Tensor, "rows n"], shift: int) -> Int[Tensor, "rows n"]:
    return _shifted(bits, shift).bitwise_xor_(bits)


def _shifted(bits: Int[Tensor, "rows n"], shift: int) -> Int[Tensor, "rows n"]:
    """Logical right shift of 64-bit integers; torch's `>>` is arithmetic."""
    return (bits >> shift).bitwise_and_((1 << (64 - shift)) - 1)
