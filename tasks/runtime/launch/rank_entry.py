"""Entry point of every rank: ties it to torchrun's life, opens its log, runs the rank program.

    python -m tasks.runtime.launch.rank_entry <torchrun pid> <logs> <failures> <module> <job.json>

One rank's failure makes the others fail within milliseconds ("connection closed by peer"), and
torchrun's failure times are whole seconds. Each rank therefore records when its own exception
reached the top.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from pathlib import Path

from dynolab.errors import DynolabError
from tasks.runtime.launch.devices import check_usable
from tasks.runtime.system.child import die_with_parent, run_as_main


def _log_to(file: Path) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def main(parent: int, logs: Path, failures: Path, module: str, job: str) -> None:
    """Run `module` with the argument `job`; record an exception and raise it again."""
    die_with_parent(parent)
    rank = os.environ["RANK"]
    _log_to(logs / f"rank-{rank}.log")
    faulthandler.enable()
    record: dict[str, float | str]
    try:
        check_usable()
        run_as_main(module, [job])
    except BaseException as error:
        code = _exit_code(error)
        if code != 0:
            record = {"time": time.time(), "exit_code": code}
            if isinstance(error, DynolabError):  # its message is written for users
                record["reason"] = str(error)
            (failures / f"rank-{rank}.json").write_text(json.dumps(record), encoding="utf-8")
        raise


def _exit_code(error: BaseException) -> int:
    """Python's exit code for this exception."""
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


if __name__ == "__main__":
    _parent, _logs, _failures, _module, _job = sys.argv[1:]
    main(int(_parent), Path(_logs), Path(_failures), _module, _job)
