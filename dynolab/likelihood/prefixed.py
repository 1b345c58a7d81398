"""Runs the decoder on prompts that their responses share, and on prompts' caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dynolab.data.prefixes import PrefixBatch, places_of
from dynolab.errors import ConfigError
from dynolab.likelihood.decoder import logits_of, run_decoder
from dynolab.likelihood.packed import additive_mask, attention_windows
from dynolab.likelihood.streamed import device_of


def prefixed_hidden(causal: nn.Module, batch: PrefixBatch) -> Float[Tensor, "1 length features"]:
    """Last hidden states of the row.

    torch's attention (`sdpa`) computes the batch's pieces; any other one computes all pairs of the
    row under a mask.

    **Arguments:**

    - `causal`: a causal language model of transformers.
    """
    config: Any = causal.config
    windows = attention_windows(config)
    if config._attn_implementation != "sdpa":
        seen = {kind: additive_mask(batch.visible(window)) for kind, window in windows.items()}
        return _run(causal, batch, seen)
    pieces = _AttendInPieces(batch)
    with pieces:
        return _run(causal, batch, {kind: pieces.mask(w) for kind, w in windows.items()})


def _run(
    causal: nn.Module, batch: PrefixBatch, masks: dict[str, Tensor]
) -> Float[Tensor, "1 length features"]:
    hidden: Tensor = run_decoder(
        causal,
        input_ids=batch.input_ids,
        attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
        position_ids=batch.position_ids,
        use_cache=False,
    ).last_hidden_state
    return hidden


class _AttendInPieces(TorchFunctionMode):
    """While open, torch's attention over the batch's row computes its pieces alone.

    transformers hands a four-dimensional mask to torch as it is. The masks made here take no memory
    and are known again by their address.

    **Raises:** `ConfigError` from attention with another mask: the family made one of its own.
    """

    def __init__(self, batch: PrefixBatch) -> None:
        super().__init__()
        self._batch = batch
        self._known: dict[int, tuple[Tensor, int | None]] = {}
        self._seen: dict[tuple[int | None, torch.dtype], list[Tensor]] = {}

    def mask(self, window: int | None) -> Tensor:
        """Stands for the attention to a window of earlier tokens; None: to all of them."""
        length, device = len(self._batch.order), self._batch.order.device
        mark = torch.ones((), dtype=torch.bool, device=device)
        self._known[mark.data_ptr()] = mark, window
        return mark.expand(1, 1, length, length)

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        arguments: Sequence[Any] = (),
        named: dict[str, Any] | None = None,
    ) -> Any:
        named = named or {}
        if function is not F.scaled_dot_product_attention:
            return function(*arguments, **named)
        return self._attend(*arguments, **named)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, **named: Any
    ) -> Float[Tensor, "1 heads length features"]:
        mark = None if attn_mask is None else attn_mask.data_ptr()
        if mark not in self._known:
            raise ConfigError("batch", "prefixed rows", "the model's attention has its own mask")
        if len(self._batch.order) == 1:  # transformers lets heads take the places of queries then
            return F.scaled_dot_product_attention(query, key, value, **named)
        masks = self._masks(self._known[mark][1], query.dtype)
        outputs = []
        for piece, mask in zip(self._batch.pieces, masks, strict=True):
            own, seen = piece.query, piece.key
            output = F.scaled_dot_product_attention(
                _taken(query, own), _taken(key, seen), _taken(value, seen), mask, **named
            )
            outputs.append(output.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, self._batch.order).transpose(0, 1)[None]

    def _masks(self, window: int | None, dtype: torch.dtype) -> list[Tensor]:
        """Every piece's, made once for all layers."""
        key = window, dtype
        if key not in self._seen:
            self._seen[key] = [
                additive_mask(piece.visible(window), dtype) for piece in self._batch.pieces
            ]
        return self._seen[key]


def _taken(
    row: Float[Tensor, "1 heads length features"], places: Int[Tensor, "responses tokens"]
) -> Float[Tensor, "responses heads tokens features"]:
    """Some tokens of the row: heads of a token lie beside each other, so it is copied at once."""
    tokens = row.transpose(1, 2)[0].index_select(0, places.flatten())
    return tokens.unflatten(0, places.shape).transpose(1, 2)


def next_logits(
    causal: nn.Module, ids: Int[Tensor, "rows new"], mask: Int[Tensor, "rows length"], cache: Any
) -> tuple[Float[Tensor, "rows vocabulary"], Any]:
    """Logits that predict the next token, and the cache with the new tokens in it.

    **Arguments:**

    - `ids`: prompts padded on the left, or the newest token of each row.
    - `mask`: over all tokens so far, those in the cache first.
    - `cache`: as the previous call returned it; None at first.
    """
    device = device_of(causal)
    output = run_decoder(
        causal,
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        position_ids=places_of(mask)[:, -ids.shape[1] :].to(device),
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
