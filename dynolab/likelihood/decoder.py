"""The two halves of a causal language model: its decoder, and its forward after the decoder.

Families do more to logits than apply a head: Cohere scales them, Granite divides them, Gemma-2 caps
them. No family needs a special case here: the second half is the model's own forward, with the
hidden states in its decoder's place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dynolab.likelihood.streamed import device_of


def run_decoder(causal: nn.Module, *, position_ids: Tensor, **inputs: Any) -> Any:
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
    logits: Tensor = _own_forward(causal)(causal, input_ids=ids, use_cache=False).logits
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

    def __init__(self, module: nn.Module, hidden: Tensor) -> None:
        self._module, self._hidden = module, hidden

    def __call__(self, *inputs: Any, **named: Any) -> _Output:
        return _Output((self._hidden,))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return _Decoded(value, self._hidden) if isinstance(value, nn.Module) else value


class _Output(tuple[Tensor]):
    """A decoder's output by index and by name; absent fields (a cache, router logits) are None."""

    @property
    def last_hidden_state(self) -> Tensor:
        """The hidden states."""
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None
