"""The operations of passes, against torch's own count of their matrix products."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dynolab.costs.batches import positions_of
from dynolab.costs.operations import forward_flops, gradient_flops
from dynolab.costs.shape import shape_of
from dynolab.costs.traced import MicroBatch, trace
from dynolab.training.adapters import add_adapters
from dynolab.training.config import LoraConfig
from tests.costs.shapes import BUILD

BATCH = MicroBatch(rows=3, length=40, responses=50)


@pytest.mark.parametrize("family", BUILD)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_of_a_gradient(family: str, checkpoint: bool) -> None:
    model = BUILD[family](4, torch.float32).eval()
    with FlopCounterMode(display=False) as counted:
        trace(model, BATCH, products=True, checkpoint=checkpoint)
    planned = gradient_flops(shape_of(model), positions_of(BATCH), checkpoint=checkpoint)
    # What is computed again stops before a layer's last product, whose result is not read.
    assert planned == pytest.approx(counted.get_total_flops(), rel=0.1 if checkpoint else 0.01)


def test_of_a_gradient_of_adapters() -> None:
    model = add_adapters(BUILD["neox"](4, torch.float32), LoraConfig(rank=2), 0).eval()
    with FlopCounterMode(display=False) as counted:
        trace(model, BATCH, products=True)
    planned = gradient_flops(shape_of(model), positions_of(BATCH))
    assert planned == pytest.approx(counted.get_total_flops(), rel=0.1)


def test_of_a_forward() -> None:
    model = BUILD["llama"](4, torch.float32).eval()
    ids = torch.zeros(2, 30, dtype=torch.long)
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(input_ids=ids)
    planned = forward_flops(shape_of(model), positions_of(MicroBatch(2, 30, 60)))
    assert planned == pytest.approx(counted.get_total_flops(), rel=0.01)
