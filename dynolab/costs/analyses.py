"""What analyses of a model take, counted in copies of its weights in fp32.

Activations are left out: they are small beside these copies where a plan decides anything.
Checked: `tests/costs/test_analyses.py` counts the tensors of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from dynolab.costs.memory import FP32, states
from dynolab.costs.shape import ModelShape
from dynolab.forces.ledger.account import COPIES
from dynolab.training.config import OptimizerConfig


def audit_bytes(shape: ModelShape) -> int:
    """3: weights, one of two sums of gradients, and a gradient."""
    return 3 * FP32 * shape.parameters


@dataclass(frozen=True)
class ForcesBytes:
    """Most bytes of tensors of a step's forces.

    - `device`: on the policy's GPU; `host`: in main memory beside it.
    - `together`: where main memory has both, and shares what both hold.
    """

    device: int
    host: int
    together: int


def forces_bytes(shape: ModelShape, optimizer: OptimizerConfig) -> ForcesBytes:
    """What a stage of forces holds, in copies of the weights.

    On a GPU 6: the policy, the gradients of both sides and what the step's map makes of them; or
    the map, an answer's gradient and its change, and weights to take derivatives at. In main
    memory 8 + s: weights before and after the step and at its midpoint, its s optimizer states,
    its change and three parts of it, and the weights that the first recorded step started from.
    Together 11 + s.
    """
    copy = FP32 * shape.parameters
    recorded = 8 + states(optimizer)
    return ForcesBytes(device=6 * copy, host=recorded * copy, together=(recorded + 3) * copy)


def ledger_copies(
    optimizer: OptimizerConfig, *, functionals: int, responses: int, whole: bool = True
) -> int:
    """`3 f + r + 13 + s` for f functionals at once, r responses of a batch and s optimizer states;
    a functional has one copy more where steps are left out."""
    return (COPIES + (not whole)) * functionals + responses + 13 + states(optimizer)


def squeezing_bytes(shape: ModelShape, optimizer: OptimizerConfig) -> int:
    """10 + s: the policy, the model that it started from, a record, its step's map, and gradients
    with changes along them."""
    return (10 + states(optimizer)) * FP32 * shape.parameters


def kernel_bytes(shape: ModelShape, memory: int) -> int:
    """The weights and a direction, beside the memory of images and of directions that share a
    pass."""
    return 2 * FP32 * shape.parameters + memory


@dataclass(frozen=True)
class LedgerBytes:
    """Most bytes of tensors at once, those between steps, and those of functionals that wait.

    - `work`: while a step is entered.
    - `between`: while the training runs again.
    - `waiting`: on disk, written anew in every step.
    """

    work: int
    between: int
    waiting: int


def ledger_bytes(
    shape: ModelShape,
    optimizer: OptimizerConfig,
    *,
    functionals: int,
    responses: int,
    whole: bool,
    memory: int,
) -> LedgerBytes:
    """`ledger_copies` and the momentum of one more step, where functionals get half of the memory
    that the others leave.

    They wait on disk where that is too little (`Ledger`).
    """
    copy = FP32 * shape.parameters
    each = COPIES + (not whole)
    fixed = ledger_copies(optimizer, functionals=0, responses=responses) + 1
    fitting = max(1, (memory // copy - fixed) // (2 * each))
    kept = (each - 1) * functionals
    if fitting < functionals:
        return LedgerBytes((each * fitting + fixed) * copy, 2 * copy, kept * copy)
    return LedgerBytes((each * functionals + fixed) * copy, (kept + 2) * copy, 0)
