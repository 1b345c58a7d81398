"""The sizes of a model that decide what its training costs, without its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class ModelShape:
    """A causal language model's sizes.

    - `parameters`: all weights, tied ones once; `trained`: those that an optimizer moves.
    - `head`: numbers in the output head, width × vocabulary.
    - `largest`: numbers in the largest weight.
    """

    parameters: int
    trained: int
    head: int
    layers: int
    width: int
    context: int
    largest: int


UNBOUNDED = 2048
"""Tokens that a row may have where config.json sets no limit, as models with ALiBi and recurrent
ones do; its `max_position_embeddings` sets another."""


def context_of(config: Any) -> int:
    """The context length of a text model's configuration, in tokens."""
    for name in ("max_position_embeddings", "max_seq_len"):
        length = getattr(config, name, None)
        if length is not None:
            return int(length)
    return UNBOUNDED


def shape_of(model: nn.Module) -> ModelShape:
    """The shape of a transformers model; its weights may be on the meta device."""
    config: Any = model.config.get_text_config()  # type: ignore[union-attr, operator]
    head = model.get_output_embeddings().weight  # type: ignore[operator]
    weights = list(model.parameters())
    return ModelShape(
        parameters=sum(w.numel() for w in weights),
        trained=sum(w.numel() for w in weights if w.requires_grad),
        head=head.numel(),
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        context=context_of(config),
        largest=max(w.numel() for w in weights),
    )
