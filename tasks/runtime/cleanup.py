"""Cleans up after dead processes: kills their orphans and sends their runs to MLflow."""

from __future__ import annotations

import json
import logging
import os
import signal
from contextlib import suppress

from dynolab.store.claim import is_dead
from tasks.runtime.launch.launcher import OWNER_VARIABLE
from tasks.runtime.system.processes import variable_of_all
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.runs import left_behind
from tasks.runtime.track.tracking import Tracking

log = logging.getLogger(__name__)

SENDING_SECONDS = 60.0


def clean_up(settings: Settings) -> dict[str, int]:
    """Clean up on this host.

    MLflow runs that dead processes left in the outbox are sent, and end as KILLED.

    Returns the numbers of orphans killed (`reaped`) and of runs that could not be sent (`unsent`).
    """
    counts = {"reaped": len(reap_orphans()), "unsent": 0}
    if settings.mlflow_tracking_uri is not None and left_behind(settings.outbox):
        # It only sends, and needs no experiment for runs of its own.
        tracking = Tracking(settings.mlflow_tracking_uri, settings.outbox, experiment="")
        counts["unsent"] = tracking.close(SENDING_SECONDS)
    return counts


def reap_orphans() -> list[int]:
    """SIGKILL this host's ranks, and the processes they started, whose supervisor is dead.

    The kernel kills a rank with its supervisor (PR_SET_PDEATHSIG), but not a helper that the rank
    started in a session of its own. Processes of a living supervisor, of another machine or of
    another container are never touched. Returns the ids of the killed processes.
    """
    orphans = [pid for pid, text in variable_of_all(OWNER_VARIABLE).items() if _is_orphan(text)]
    for pid in orphans:
        log.warning("killing process %d: its supervisor is dead", pid)
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return orphans


def _is_orphan(text: str) -> bool:
    """Whether the supervisor that a rank's OWNER_VARIABLE names, as JSON, is dead."""
    try:
        owner = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(owner, dict) and is_dead(owner)
