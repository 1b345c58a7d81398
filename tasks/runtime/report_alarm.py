"""Reports an alarm on the squeezing gap to MLflow (a tag) and Prefect (an event)."""

from __future__ import annotations

import contextvars
import logging
from typing import TYPE_CHECKING, Any

from dynolab.training.alarm import GAP, RANG, RISE
from tasks.runtime.track.prefect_progress import raise_event

if TYPE_CHECKING:
    from tasks.runtime.track.tail import MetricLine
    from tasks.runtime.work import Work

log = logging.getLogger(__name__)

EVENT = "dynolab.squeeze.alarm"
TAG = "squeeze.alarm"


class AlarmBell:
    """Reads a training's metric lines and reports the one that triggers the alarm.

    Create it on the stage's thread: it keeps that thread's Prefect context, so that any thread
    may call it.
    """

    def __init__(self, work: Work[Any]) -> None:
        self._work = work
        self._context = contextvars.copy_context()

    def __call__(self, line: MetricLine) -> None:
        """Read one line."""
        if RANG not in line.metrics:
            return
        name, gap, rise = self._work.name, line.metrics[GAP], line.metrics[RISE]
        message = f"step {line.step}: the gap y* - chosen grew by {rise:.2f} nats to {gap:.2f}"
        log.warning("%s: the alarm rings at %s", name, message)
        self._work.tracker.set_tags({TAG: message})
        payload = {"stage": name, "step": line.step, "gap": gap, "rise": rise, "unit": "nats"}
        self._context.run(raise_event, EVENT, self._work.address, name, payload)
