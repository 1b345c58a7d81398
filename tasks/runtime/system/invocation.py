"""How the user started `dynolab`, for commands that pages and the terminal offer for pasting."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

PROGRAM = "dynolab"


def invocation() -> str:
    """The words that start `dynolab` as this process was started.

    `dynolab` where the shell finds this very program, else the path that was typed, or
    `python -m dynolab`. Processes that were started otherwise, such as workers, say `dynolab`.
    """
    typed = Path(sys.argv[0])  # of `python -m dynolab`: the package's __main__.py
    if typed.name == "__main__.py" and typed.parent.name == PROGRAM:
        return f"{_program('python', sys.executable)} -m {PROGRAM}"
    return PROGRAM if typed.name != PROGRAM else _program(PROGRAM, sys.argv[0])


def _program(name: str, path: str) -> str:
    """The name, if the shell finds it at the path, else the path."""
    program = shutil.which(name)
    if program is not None and Path(path).exists() and Path(program).samefile(path):
        return name
    return shlex.quote(path)
