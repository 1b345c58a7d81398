"""What a fault test tells the benchmark of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Record = Callable[[str, Any], None]


def tell(
    record: Record,
    fault: str,
    *,
    left: Sequence[str],
    metrics_lost: Sequence[str] | None,
    resume_identical: bool | None = None,
    cancel_seconds: float | None = None,
) -> None:
    """Records which fault was injected and what it cost, then asserts that nothing was lost.

    `metrics_lost` None: what the fault befalls makes no metrics.
    """
    record("fault", fault)
    record("orphans", len(left))
    if metrics_lost is not None:
        record("metrics_lost", len(metrics_lost))
    if resume_identical is not None:
        record("resume_identical", str(resume_identical).lower())
    if cancel_seconds is not None:
        record("cancel_seconds", cancel_seconds)
    assert not left, left
    assert not metrics_lost, metrics_lost
    assert resume_identical is not False
