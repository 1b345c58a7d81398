"""What analyses of a model take, counted in copies of its weights in fp32.

Activations are left out: they are small beside these copies where a plan decides anything.
Checked: `tests/costs/test_analyses.py` counts the tensors of each.
"""

from __future__ import annotations

from dynolab.costs.memory import FP32, states
from dynolab.costs.shape import ModelShape
from dynolab.training.config import OptimizerConfig


def audit_bytes(shape: ModelShape) -> int:
    """3: weights, one of two sums of gradients, and a gradient."""
    return 3 * FP32 * shape.parameters


def forces_bytes(shape: ModelShape, optimizer: OptimizerConfig) -> int:
    """15 + s: the policy, weights before, between and after, the step's parts, and the s optimizer
    states, as they are recorded and as the step's map has them."""
    return (15 + states(optimizer)) * FP32 * shape.parameters


def ledger_copies(
    optimizer: OptimizerConfig, *, functionals: int, responses: int, whole: bool
) -> int:
    """Copies for each functional, for each response of a batch, and beside them."""
    return 6 * functionals + 3 * responses + 15 + states(optimizer) + (not whole) * functionals


def ledger_bytes(
    shape: ModelShape,
    optimizer: OptimizerConfig,
    *,
    functionals: int,
    responses: int,
    whole: bool,
) -> int:
    """`ledger_copies`, in bytes."""
    copies = ledger_copies(optimizer, functionals=functionals, responses=responses, whole=whole)
    return copies * FP32 * shape.parameters
