"""Activation checkpointing: a layer's activations are computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from dynolab.errors import ConfigError

FIELD = "engine.checkpoint_activations"


def prepare_checkpointing(model: nn.Module) -> None:
    """Lets `activations_checkpointed` find the layers of a transformers model.

    **Raises:** `ConfigError` for a model whose layers transformers cannot checkpoint, or drop out
    activations themselves: they only run again while they count as training.
    """
    layers = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not layers:
        raise ConfigError(
            FIELD, True, f"{type(model).__name__} has no layers that transformers can checkpoint"
        )
    for layer in layers:
        for name, value in vars(layer).items():
            if "drop" in name and isinstance(value, float) and value > 0:
                raise ConfigError(
                    FIELD,
                    True,
                    f"{type(layer).__name__} would drop out activations with {name} = {value}; "
                    "set it to 0 in the model's config.json",
                )
    assert isinstance(model, PreTrainedModel), "transformers builds its layers into its own models"
    model.activation_checkpointing_enable({"use_reentrant": False})


@contextmanager
def activations_checkpointed(model: nn.Module) -> Iterator[None]:
    """While open, prepared layers keep their inputs alone for the backward pass.

    Only the layers themselves count as training, not what is in them, so that nothing else about
    the forward changes: policies run without dropout.
    """
    layers = [
        module
        for module in model.modules()
        if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing
    ]
    modes = [layer.training for layer in layers]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.training = mode
