"""The process of one deployed flow run: Prefect's engine, tied to the worker that started it.

A worker that is killed takes its runs along, and they the ranks that they launched: nothing stays
that nobody waits for.
"""

from __future__ import annotations

import os

from tasks.runtime.child import die_with_parent, run_as_main

if __name__ == "__main__":
    die_with_parent(os.getppid())
    run_as_main("prefect.engine", [])
