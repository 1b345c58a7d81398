"""Runs the transformer on rows with shared prompts, and its head on response tokens in parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dynolab import distributed
from dynolab.data.batches import TokenBatch, TopTokens
from dynolab.data.packing import PackedBatch
from dynolab.errors import ConfigError

LOGITS_BYTES = 2**28
"""Size of the float32 logits held at a time where they are read in parts."""

NEAR_BYTES, NEAR_TOKENS = 2**21, 256
"""The same on a CPU without a backward pass: few enough bytes to stay in its cache, and enough
tokens to be worth a pass over the head's weights."""

Reading = Callable[[Float[Tensor, "tokens vocabulary"], TokenBatch], Tensor]
"""Maps logits to one or more values per response token, each from that token's own logits."""


def attention_mask(model: nn.Module, batch: TokenBatch) -> Tensor | dict[str, Tensor]:
    """A batch's attention mask in the form that a transformers model takes.

    transformers uses a four-dimensional mask unchanged in every layer and ignores the model's
    sliding window, so the mask includes it. Models with layers of both kinds take one mask each.

    **Raises:** `ConfigError` for packed rows if a layer attends neither to all earlier tokens nor
    to a window of them.
    """
    if not isinstance(batch, PackedBatch):
        return batch.attention_mask
    config: Any = model.config
    masks = {kind: batch.visible(window) for kind, window in attention_windows(config).items()}
    if config._attn_implementation == "eager":
        masks = {kind: additive_mask(mask) for kind, mask in masks.items()}
    return masks if len(masks) > 1 else next(iter(masks.values()))


def attention_windows(config: Any) -> dict[str, int | None]:
    """How far back the layers of each kind attend, in tokens with the own one; None: to the start.

    **Raises:** `ConfigError` for layers of another kind.
    """
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention"])
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        raise ConfigError(
            "model.config.layer_types",
            sorted(unknown),
            "no mask makes these layers separate responses of one row; use rows of one sequence",
        )
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}


def additive_mask(
    visible: Bool[Tensor, ...], dtype: torch.dtype = torch.float32
) -> Float[Tensor, ...]:
    """A mask that is added to scores; every query must see a key."""
    zeros = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return zeros.masked_fill(~visible, float("-inf"))


def count_parts(model: nn.Module, hidden: Float[Tensor, "tokens features"]) -> int:
    """In how many parts to read the logits of these hidden states.

    ZeRO-3 gathers the head's weights from all ranks for every part, so all ranks use the same
    number; with whole weights and its hooks off (`Engine.gathered`), each rank uses its own.
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
    """Applies `read` to all response tokens' logits, holding one part of them at a time.

    With several parts, backward recomputes each part's logits; their cotangent, for a
    log-probability `c (e_y − p)`, is formed and consumed part by part.

    **Arguments:**

    - `head`: maps hidden states to logits.

    **Returns:** the readings, one row per response token.
    """
    if parts == 1:
        return read(head(hidden), batch)

    def of_part(rows: Tensor, tokens: Tensor) -> Tensor:
        return read(head(rows), _select(batch, tokens))

    numbers = torch.arange(len(hidden), device=hidden.device).tensor_split(parts)
    split = zip(hidden.tensor_split(parts), numbers, strict=True)
    if torch.is_grad_enabled() and hidden.requires_grad:
        return torch.cat([checkpoint(of_part, *part, use_reentrant=False) for part in split])
    return torch.cat([of_part(*part) for part in split])


def _select(batch: TokenBatch, tokens: Tensor) -> TokenBatch:
    """The batch with only these response tokens."""

    def cut(values: Any) -> Any:
        if isinstance(values, TopTokens):
            return TopTokens(values.token[tokens], values.logp[tokens], values.entropy[tokens])
        return None if values is None else values[tokens]

    names = ("sequence", "position", "token", "reference", "advantage", "old", "top")
    return replace(batch, **{name: cut(getattr(batch, name)) for name in names})
