"""The two halves of a causal language model: its decoder, and its forward after the decoder.

Families do more to logits than apply a head: Cohere scales them, Granite divides them, Gemma-2 caps
them. No family needs a special case here: the second half is the model's own forward, with the
hidden states in its decoder's place. It runs on response tokens, in parts where they are many.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dynolab import distributed
from dynolab.data.batches import TokenBatch, TopTokens
from dynolab.data.packing import PackedBatch
from dynolab.errors import ConfigError
from dynolab.likelihood.streamed import device_of


def run_decoder(
    causal: nn.Module, *, position_ids: Int[Tensor, "rows length"], **inputs: Any
) -> Any:
    """Runs the decoder of a transformers causal language model.

    A family that takes no `position_ids` counts positions itself.
    """
    decoder: nn.Module = causal.base_model  # type: ignore[assignment]
    if _takes_positions(type(decoder).forward):
        inputs["position_ids"] = position_ids
    return decoder(**inputs)


def logits_of(
    causal: nn.Module, hidden: Float[Tensor, "tokens features"]
) -> Float[Tensor, "tokens vocabulary"]:
    """Logits that the model's own forward computes from hidden states of its decoder.

    They are float32, or float64 if the model's are.
    """
    with _in_place_of_decoder(causal, hidden[None]):
        logits = _own_forward(causal)(causal, use_cache=False).logits[0]
    return logits if logits.dtype == torch.float64 else logits.float()


def plain_logits(
    causal: nn.Module, ids: Int[Tensor, "rows length"]
) -> Float[Tensor, "rows length vocabulary"]:
    """Logits of the model's own forward, given token ids and nothing else."""
    logits: Float[Tensor, "rows length vocabulary"] = _own_forward(causal)(
        causal, input_ids=ids, use_cache=False
    ).logits
    return logits if logits.dtype == torch.float64 else logits.float()


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
    places = (mask.cumsum(1) - 1).clamp(min=0)  # in a token's own text; meaningless on padding
    output = run_decoder(
        causal,
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        position_ids=places[:, -ids.shape[1] :].to(device),
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


def _own_forward(causal: nn.Module) -> Callable[..., Any]:
    """The class's forward: trainers wrap an instance's forward in autocast."""
    return type(causal).forward


@cache
def _takes_positions(forward: Callable[..., Any]) -> bool:
    parameters = inspect.signature(forward).parameters
    return "position_ids" in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )


@contextmanager
def _in_place_of_decoder(causal: Any, hidden: Float[Tensor, "1 tokens features"]) -> Iterator[None]:
    """While open, the model's calls of its decoder return these hidden states."""
    name = causal.base_model_prefix
    decoder = causal._modules[name]
    causal._modules[name] = _Decoded(decoder, hidden)
    try:
        yield
    finally:
        causal._modules[name] = decoder


class _Decoded:
    """Stands in for a decoder that has run: it and its modules return the hidden states.

    Other attributes (a tied table's weights, a multiplier) are the decoder's own.
    """

    def __init__(self, module: nn.Module, hidden: Float[Tensor, "1 tokens features"]) -> None:
        self._module, self._hidden = module, hidden

    def __call__(self, *inputs: Any, **named: Any) -> _Output:
        return _Output((self._hidden,))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return _Decoded(value, self._hidden) if isinstance(value, nn.Module) else value


class _Output(tuple[Float[Tensor, "1 tokens features"]]):
    """A decoder's output by index and by name; absent fields (a cache, router logits) are None."""

    @property
    def last_hidden_state(self) -> Float[Tensor, "1 tokens features"]:
        """The hidden states."""
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


LOGITS_BYTES = 2**28
"""Size of the float32 logits held at a time where they are read in parts."""

NEAR_BYTES, NEAR_TOKENS = 2**21, 256
"""The same on a CPU without a backward pass: few enough bytes to stay in its cache, and enough
tokens to be worth a pass over the head's weights."""

Reading = Callable[[Float[Tensor, "tokens vocabulary"], TokenBatch], Float[Tensor, "tokens ..."]]
"""Maps logits to one or more values per response token, each from that token's own logits."""


def attention_mask(
    model: nn.Module, batch: TokenBatch
) -> Shaped[Tensor, " ..."] | dict[str, Shaped[Tensor, " ..."]]:
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
    unknown = kinds - {"full_attention", "sliding_attention"}
    if unknown:
        raise ConfigError(
            "model.config.layer_types",
            sorted(unknown),
            "no mask makes these layers separate responses of one row; use rows of one sequence",
        )
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}


def additive_mask(
    visible: Bool[Tensor, " ..."], dtype: torch.dtype = torch.float32
) -> Float[Tensor, " ..."]:
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
    head: Callable[[Float[Tensor, "tokens features"]], Float[Tensor, "tokens vocabulary"]],
    hidden: Float[Tensor, "tokens features"],
    batch: TokenBatch,
    read: Reading,
    parts: int,
) -> Float[Tensor, "tokens ..."]:
    """Applies `read` to all response tokens' logits, holding one part of them at a time.

    With several parts, backward recomputes each part's logits; their cotangent, for a
    log-probability `c (e_y − p)`, is formed and consumed part by part.

    **Arguments:**

    - `head`: maps hidden states to logits.

    **Returns:** the readings, one row per response token.
    """
    if parts == 1:
        return read(head(hidden), batch)

    def of_part(
        rows: Float[Tensor, "tokens features"], tokens: Int[Tensor, " tokens"]
    ) -> Float[Tensor, "tokens ..."]:
        return read(head(rows), _select(batch, tokens))

    numbers = torch.arange(len(hidden), device=hidden.device).tensor_split(parts)
    split = zip(hidden.tensor_split(parts), numbers, strict=True)
    if torch.is_grad_enabled() and hidden.requires_grad:
        return torch.cat([checkpoint(of_part, *part, use_reentrant=False) for part in split])
    return torch.cat([of_part(*part) for part in split])


def _select(batch: TokenBatch, tokens: Int[Tensor, " tokens"]) -> TokenBatch:
    """The batch with only these response tokens."""

    def cut(values: Any) -> Any:
        if isinstance(values, TopTokens):
            return TopTokens(values.token[tokens], values.logp[tokens], values.entropy[tokens])
        return None if values is None else values[tokens]

    names = ("sequence", "position", "token", "reference", "advantage", "old", "top")
    return replace(batch, **{name: cut(getattr(batch, name)) for name in names})
