"""Entry point of every rank: ties it to torchrun's life, opens its log, runs the rank program.

The launcher's torchrun names the program. On other hosts torchrun starts this module without
arguments, and its ranks run what rank 0 runs (docs/operate/hosts.md).

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

from pydantic import BaseModel

from dynolab.aside import write_text_aside
from dynolab.errors import ConfigError, DynolabError
from dynolab.store import library_versions
from tasks.runtime.launch.devices import check_usable
from tasks.runtime.system.child import die_with_parent, run_as_main, starter
from tasks.runtime.system.computing import COMPUTING

PROGRAMS = "tasks.ranks."


class Program(BaseModel):
    """A rank program and its job file; `failures` is the folder for failure records."""

    module: str
    job: Path
    ranks: int
    logs: Path
    failures: Path
    libraries: dict[str, str]


def main(launched: Program | None) -> None:
    """Run the program; record an exception and raise it again.

    **Arguments:** `launched`: the program, if this host's launcher named it; None on other hosts.
    """
    die_with_parent(starter())
    several = int(os.environ["GROUP_WORLD_SIZE"]) > 1
    program = program_of_rank_0(launched) if several or launched is None else launched
    rank = os.environ["RANK"]
    descriptor = os.open(
        program.logs / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    )
    # Standard output and error, also of libraries in C.
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable()
    try:
        if several:
            check_agreement(program)
        check_usable()
        # DeepSpeed would import MLflow, for its own tuning: a fifth of what a rank imports.
        sys.modules["mlflow"] = None  # type: ignore[assignment]
        run_as_main(program.module, [str(program.job)])
    except BaseException as error:
        code = _exit_code(error)
        if code != 0:
            reason = str(error) if isinstance(error, DynolabError) else None
            record = json.dumps({"time": time.time(), "exit_code": code, "reason": reason})
            folder = program.failures
            write_text_aside(folder / f"rank-{rank}.json", record, folder)
        raise


def program_of_rank_0(launched: Program | None) -> Program:
    """The program that rank 0 was given, through torchrun's own store.

    **Raises** `ConfigError` if this host does not see its files.
    """
    # The launcher has set these here, torchrun on other hosts has not.
    for name, value in COMPUTING.items():
        os.environ.setdefault(name, value)
    import torch.distributed as dist

    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    if launched is not None:  # rank 0's host tells the others
        store.set("dynolab", launched.model_dump_json())
    program = Program.model_validate_json(store.get("dynolab"))
    if not program.failures.exists():
        raise ConfigError(
            "DYNOLAB_HOME", str(program.job), "must be one folder that all hosts share"
        )
    return program


def check_agreement(program: Program) -> None:
    """Raises `ConfigError` if this host's torchrun or libraries do not fit rank 0's."""
    if not program.module.startswith(PROGRAMS):
        raise ConfigError("module", program.module, f"several hosts run only {PROGRAMS}*")
    if int(os.environ["WORLD_SIZE"]) != program.ranks:
        raise ConfigError(
            "--nproc-per-node",
            os.environ["LOCAL_WORLD_SIZE"],
            f"{program.ranks} ranks over {os.environ['GROUP_WORLD_SIZE']} hosts need the same "
            "number on each",
        )
    here = library_versions()
    for name, version in program.libraries.items():
        if here.get(name) != version:
            raise ConfigError(
                name, here.get(name), f"is another version than rank 0's {version}: install that"
            )


def _exit_code(error: BaseException) -> int:
    """Python's exit code for this exception."""
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


if __name__ == "__main__":
    main(Program.model_validate_json(sys.argv[1]) if len(sys.argv) > 1 else None)
