"""The decoder on prompts that run once, and on responses that go on from their caches."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dynolab.data.prefixes import PrefixBatch, Tails, places_of
from dynolab.decoder import run_decoder


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
            hidden.append(_go_on(causal, batch, cache, tails).flatten(0, 1))
    return torch.cat(hidden)[batch.position]


def _go_on(
    causal: nn.Module, batch: PrefixBatch, cache: Any, tails: Tails
) -> Float[Tensor, "responses length features"]:
    """Hidden states of responses that see their prompts' keys and values."""
    from transformers import DynamicCache

    before = batch.attention_mask[tails.prompt]
    kept = int(before.sum(1).max())
    mask = torch.cat([before[:, -kept:], tails.attention_mask], dim=1)
    copies = [
        (one.keys[tails.prompt][:, :, -kept:], one.values[tails.prompt][:, :, -kept:])
        for one in cache.layers
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
