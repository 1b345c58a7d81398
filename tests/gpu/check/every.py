"""All checks, in the order in which they run."""

from __future__ import annotations

from tests.gpu.check import arithmetic, forces, ranks, trainings
from tests.gpu.check.outcome import Check

CHECKS: dict[str, Check] = {
    check.name: check
    for check in (*arithmetic.CHECKS, *forces.CHECKS, *trainings.CHECKS, *ranks.CHECKS)
}
