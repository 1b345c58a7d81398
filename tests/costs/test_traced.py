"""A traced micro-batch takes the bytes that the same one takes with numbers in it."""

from __future__ import annotations

import pytest
import torch

from dynolab.costs.traced import MicroBatch, activation_bytes, trace
from dynolab.likelihood.decoder import LOGITS_BYTES
from tests.costs.shapes import BUILD, NEOX

BATCH = MicroBatch(rows=3, length=40, responses=50)
LAYERS = 6


@pytest.mark.parametrize("family", BUILD)
@pytest.mark.parametrize(
    ("dtype", "products", "checkpoint"),
    [
        (torch.float32, False, False),
        (torch.float32, True, False),
        (torch.bfloat16, False, True),
    ],
)
def test_few_fake_layers_stand_for_many_real_ones(
    family: str, dtype: torch.dtype, products: bool, checkpoint: bool
) -> None:
    real = trace(
        BUILD[family](LAYERS, dtype).eval(), BATCH, products=products, checkpoint=checkpoint
    )
    traced = activation_bytes(
        BUILD[family], LAYERS, BATCH, dtype=dtype, products=products, checkpoint=checkpoint
    )
    assert traced == real


def test_logits_in_parts_are_held_in_parts() -> None:
    """Twice the tokens, beyond a part's size, take less than twice the bytes."""
    many = LOGITS_BYTES // (4 * NEOX.vocab_size)
    few, more = (
        activation_bytes(BUILD["neox"], 2, MicroBatch(1, 64, times * many)).most for times in (1, 2)
    )
    assert more < 1.3 * few
