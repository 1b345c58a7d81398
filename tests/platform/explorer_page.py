"""Serves the explorer's page as `dynolab explore` does, of a study without trainings.

    DYNOLAB_HOME=FOLDER python -m tests.platform.explorer_page

Prints its port on its first line.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dynolab.explorer.page.app import application
from dynolab.explorer.study import Study
from flows.explore import listener, serve
from tasks.runtime.system.secret_files import login_token
from tasks.runtime.system.settings import Settings


@contextmanager
def explorer_of(home: Path) -> Iterator[tuple[str, int]]:
    """The page of a home, until the block ends: its `host:port`, and its process."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"DYNOLAB_HOME": str(home)},
        text=True,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield f"127.0.0.1:{int(process.stdout.readline())}", process.pid
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    page = application(Study("doors", "report/0", {}, {}, "data/0"))
    token = login_token(Settings.from_environment().home)
    with listener(0) as server:
        print(server.getsockname()[1], flush=True)
        serve(page, server, token)


if __name__ == "__main__":
    main()
