"""The two halves of a causal language model: its decoder, and what its own forward does after it.

Families do more to logits than apply a head: Cohere scales them, Granite divides them, Gemma-2 caps
them. No family is named here: the second half is the model's own forward, with the hidden states in
its decoder's place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


def run_decoder(causal: nn.Module, *, position_ids: Tensor, **inputs: Any) -> Any:
    """What the decoder of a causal language model of transformers makes of its inputs.

    A family that takes no `position_ids` counts its positions by itself.
    """
    decoder: nn.Module = causal.base_model  # type: ignore[assignment]
    if _takes_positions(type(decoder).forward):
        inputs["position_ids"] = position_ids
    return decoder(**inputs)


def logits_of(
    causal: nn.Module, hidden: Float[Tensor, "tokens features"]
) -> Float[Tensor, "tokens vocabulary"]:
    """Logits that the model's own forward makes of some of its decoder's hidden states.

    They are float32, or float64 where the model's are.
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


def _own_forward(causal: nn.Module) -> Callable[..., Any]:
    """The class's forward: trainers lay autocast over that of an instance."""
    return type(causal).forward


@cache
def _takes_positions(forward: Callable[..., Any]) -> bool:
    parameters = inspect.signature(forward).parameters
    return "position_ids" in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )


@contextmanager
def _in_place_of_decoder(causal: Any, hidden: Float[Tensor, "1 tokens features"]) -> Iterator[None]:
    """While it is open, the model's calls of its decoder return these hidden states."""
    name = causal.base_model_prefix
    decoder = causal._modules[name]
    causal._modules[name] = _Decoded(decoder, hidden)
    try:
        yield
    finally:
        causal._modules[name] = decoder


class _Decoded:
    """A decoder that has run: called, it or any module of it returns the hidden states.

    Other attributes are the decoder's own: a tied table's weights, a multiplier.
    """

    def __init__(self, module: nn.Module, hidden: Tensor) -> None:
        self._module, self._hidden = module, hidden

    def __call__(self, *inputs: Any, **named: Any) -> _Output:
        return _Output((self._hidden,))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return _Decoded(value, self._hidden) if isinstance(value, nn.Module) else value


class _Output(tuple[Tensor]):
    """A decoder's output by place and by name; what it lacks (a cache, router logits) is None."""

    @property
    def last_hidden_state(self) -> Tensor:
        """The hidden states."""
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None
