"""How fast a model learns on this machine: a forward and a backward pass of it, timed."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from dynolab.costs.batches import positions_of
from dynolab.costs.operations import gradient_flops
from dynolab.costs.shape import ModelShape
from dynolab.costs.traced import MicroBatch, forward_backward, zero_tokens
from dynolab.likelihood.token_logps import causal_model

MOST_PARAMETERS = 2 * 10**8
"""Larger models are not built for a plan; their products take nearly all of the time."""


def model_speed(
    build: Callable[[int, torch.dtype], nn.Module], shape: ModelShape, batch: MicroBatch
) -> float:
    """Operations per second of a float32 model's forward and backward pass on CPUs.

    Small models reach a small part of the speed of matrix products: the quicker of two passes after
    a first one is taken. Weights are random.
    """
    model = build(shape.layers, torch.float32).eval()
    tokens = zero_tokens(batch, causal_model(model))
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        forward_backward(model, tokens)
        seconds.append(time.perf_counter() - began)
        model.zero_grad()
    return gradient_flops(shape, positions_of(batch)) / min(seconds[1:])
