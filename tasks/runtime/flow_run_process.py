"""The process of one deployed flow run: Prefect's engine, tied to the worker that started it.

If a worker is killed, the kernel kills its runs, and with them the ranks that they launched.
"""

from __future__ import annotations

import gc
import logging
import os
import signal

from tasks.runtime.system.child import die_with_parent, run_as_main

_LOGGERS = ("dynolab", "flows", "tasks")

if __name__ == "__main__":
    die_with_parent(os.getppid())
    # A shielded worker (`child.shield`) blocks SIGTERM, and its children inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    gc.disable()  # until the flow begins: it takes 15 % of the imports' time and frees nothing
    # Forward these loggers to the Prefect run page.
    os.environ["PREFECT_LOGGING_EXTRA_LOGGERS"] = ",".join(_LOGGERS)
    # Threads that log have no flow run, which Prefect would warn of at each line.
    os.environ["PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW"] = "ignore"
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.INFO)
    # A flow that returns a failed state has logged why; Prefect would add a traceback of its own.
    logging.getLogger("prefect.flow_runs").addFilter(
        lambda record: "prefect.exceptions.FailedRun" not in str(record.exc_info)
    )
    run_as_main("prefect.engine", [])
