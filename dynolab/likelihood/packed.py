"""The transformer on rows with shared prompts, and its head on response tokens, part by part."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dynolab import distributed
from dynolab.data.batches import TokenBatch, TopTokens
from dynolab.data.packing import PackedBatch
from dynolab.errors import ConfigError

LOGITS_BYTES = 2**28
"""Of float32 logits that exist at one time where they are read part by part."""

NEAR_BYTES, NEAR_TOKENS = 2**21, 256
"""The same on a CPU without a backward pass: what is read of them is read from its cache, and
there are tokens enough for the head's weights to be read through."""

Reading = Callable[[Float[Tensor, "tokens vocabulary"], TokenBatch], Tensor]
"""What is wanted of logits: one value or more per response token, each from its own logits."""


def attention_mask(model: nn.Module, batch: TokenBatch) -> Tensor | dict[str, Tensor]:
    """What a model of transformers takes as the mask of a batch.

    A mask of four dimensions is used as it stands in every layer, a model's sliding window
    forgotten: it is made part of the mask. Models with layers of both kinds take a mask for each.

    **Raises:** `ConfigError` for packed rows and layers that see neither all tokens before them
    nor a window of them.
    """
    if not isinstance(batch, PackedBatch):
        return batch.attention_mask
    config: Any = model.config
    additive = config._attn_implementation == "eager"
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention"])
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        raise ConfigError(
            "model.config.layer_types",
            sorted(unknown),
            "no mask tells such layers of responses that share a prompt; use rows of one sequence",
        )
    masks = {
        kind: _as_mask(batch.visible(window if kind == "sliding_attention" else None), additive)
        for kind in sorted(kinds)
    }
    return masks if len(masks) > 1 else next(iter(masks.values()))


def _as_mask(visible: Tensor, additive: bool) -> Tensor:
    """Eager attention adds its mask to the scores; no row of it is −∞ throughout."""
    if not additive:
        return visible
    return torch.zeros(visible.shape, device=visible.device).masked_fill(~visible, float("-inf"))


def count_parts(model: nn.Module, hidden: Float[Tensor, "tokens features"]) -> int:
    """In how many parts the logits of these hidden states are to be read.

    ZeRO-3 gathers the head's weights from all ranks for every part, so all ranks make as many;
    where weights are whole and its hooks are off (`Engine.gathered`), each rank makes its own.
    """
    vocabulary: int = model.config.vocab_size  # type: ignore[union-attr, assignment]
    partitioned = any(hasattr(weights, "ds_id") for weights in model.parameters())
    gathers = partitioned and any(module._forward_pre_hooks for module in model.modules())
    size = LOGITS_BYTES
    if hidden.device.type == "cpu" and not (torch.is_grad_enabled() or gathers):
        size = min(size, max(NEAR_BYTES, 4 * vocabulary * NEAR_TOKENS))
    parts = max(1, math.ceil(4 * vocabulary * len(hidden) / size))
    return max(distributed.gather(parts)) if gathers else parts


def read_parts(
    head: Callable[[Tensor], Tensor],
    hidden: Float[Tensor, "tokens features"],
    batch: TokenBatch,
    read: Reading,
    parts: int,
) -> Tensor:
    """`read` of all response tokens' logits, of which one part exists at a time.

    Of several parts, backward computes each one's logits again: for a log-probability their
    cotangent is `c (e_y − p)`, formed and used up part by part.

    **Arguments:**

    - `head`: from hidden states to logits.

    **Returns:** the readings, one row per response token.
    """
    if parts == 1:
        return read(head(hidden), batch)

    def of_part(rows: Tensor, tokens: Tensor) -> Tensor:
        return read(head(rows), _only(batch, tokens))

    numbers = torch.arange(len(hidden), device=hidden.device).tensor_split(parts)
    split = zip(hidden.tensor_split(parts), numbers, strict=True)
    if torch.is_grad_enabled() and hidden.requires_grad:
        return torch.cat([checkpoint(of_part, *part, use_reentrant=False) for part in split])
    return torch.cat([of_part(*part) for part in split])


def _only(batch: TokenBatch, tokens: Tensor) -> TokenBatch:
    """The batch with some of its response tokens."""

    def cut(values: Any) -> Any:
        if isinstance(values, TopTokens):
            return TopTokens(values.token[tokens], values.logp[tokens], values.entropy[tokens])
        return None if values is None else values[tokens]

    names = ("sequence", "position", "token", "reference", "advantage", "old", "top")
    return replace(batch, **{name: cut(getattr(batch, name)) for name in names})
