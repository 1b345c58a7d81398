"""The process of one deployed flow run: Prefect's engine, tied to the worker that started it.

A worker that is killed takes its runs along, and they the ranks that they launched: nothing stays
that nobody waits for.
"""

from __future__ import annotations

import logging
import os

from tasks.runtime.system.child import die_with_parent, run_as_main

_SPEAKERS = ("dynolab", "flows", "tasks")

if __name__ == "__main__":
    die_with_parent(os.getppid())
    # What a run says of itself (whom it waits for, what it could not send) stands on its page.
    os.environ["PREFECT_LOGGING_EXTRA_LOGGERS"] = ",".join(_SPEAKERS)
    os.environ["PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW"] = "ignore"  # threads have no run
    for speaker in _SPEAKERS:
        logging.getLogger(speaker).setLevel(logging.INFO)
    run_as_main("prefect.engine", [])
