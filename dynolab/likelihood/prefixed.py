"""Runs the decoder once on each prompt, and on responses from their prompts' caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from dynolab.data.prefixes import PrefixBatch, Tails, places_of
from dynolab.likelihood.decoder import logits_of, run_decoder


def prefixed_hidden(causal: nn.Module, batch: PrefixBatch) -> Float[Tensor, "tokens features"]:
    """Last hidden states from which each response token is predicted.

    **Arguments:**

    - `causal`: a causal language model of transformers.
    """
    from transformers import DynamicCache

    cache = DynamicCache()
    ends = run_decoder(
        causal,
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state[:, -1]
    hidden = [ends]
    for tails in batch.tails:
        if tails.input_ids.shape[1]:
            hidden.append(_continue_prompts(causal, batch, cache, tails).flatten(0, 1))
    return functional.embedding(batch.position, torch.cat(hidden))  # as in `response_hidden`


def _continue_prompts(
    causal: nn.Module, batch: PrefixBatch, cache: Any, tails: Tails
) -> Float[Tensor, "responses length features"]:
    """Hidden states of responses that attend to their prompts' cached keys and values."""
    from transformers import DynamicCache

    before = batch.attention_mask[tails.prompt]
    kept = int(before.sum(1).max())
    mask = torch.cat([before[:, -kept:], tails.attention_mask], dim=1)
    copies = [
        (
            layer.keys.index_select(0, tails.prompt)[:, :, -kept:],
            layer.values.index_select(0, tails.prompt)[:, :, -kept:],
        )
        for layer in cache.layers
    ]
    hidden: Tensor = run_decoder(
        causal,
        input_ids=tails.input_ids,
        attention_mask=mask,
        position_ids=places_of(mask)[:, kept:],
        past_key_values=DynamicCache(copies),
        use_cache=True,
    ).last_hidden_state
    return hidden


def next_logits(
    causal: nn.Module, ids: Int[Tensor, "rows new"], mask: Int[Tensor, "rows length"], cache: Any
) -> tuple[Float[Tensor, "rows vocabulary"], Any]:
    """Logits that predict the next token, and the cache with the new tokens in it.

    **Arguments:**

    - `ids`: prompts padded on the left, or the newest token of each row.
    - `mask`: over all tokens so far, those in the cache first.
    - `cache`: as the previous call returned it; None at first.
    """
    device = causal.get_input_embeddings().weight.device  # type: ignore[operator]
    positions = places_of(mask)[:, -ids.shape[1] :]
    output = run_decoder(
        causal,
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        position_ids=positions.to(device),
        past_key_values=cache,
        use_cache=True,
    )
    return logits_of(causal, output.last_hidden_state[:, -1]), output.past_key_values


def pad_left(
    rows: Sequence[Sequence[int]], pad: int
) -> tuple[Int[Tensor, "rows length"], Int[Tensor, "rows length"]]:
    """Rows padded on the left to one length, and their mask."""
    length = max(map(len, rows))
    ids = torch.full((len(rows), length), pad, dtype=torch.long)
    mask = torch.zeros((len(rows), length), dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, length - len(row) :] = torch.tensor(row, dtype=torch.long)
        mask[number, length - len(row) :] = 1
    return ids, mask
