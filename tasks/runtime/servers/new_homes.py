"""What Prefect's server makes in a new home, made once when Dynolab is set up, for every home.

    python -m tasks.runtime.servers.new_homes    # makes it; `make setup` runs this

Migrations and block types take Prefect four seconds of computing in a new database. They depend on
its release alone, so a home begins with a copy of the finished database, which has no rows of
anything else. Without that copy Prefect makes its database as ever.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

DATABASE = "prefect.db"


def block_types() -> str:
    """Name of the file that Prefect's server writes when this release's block types are stored."""
    return f"blocks-{version('prefect')}.toml"


def saved_files() -> Path:
    """Folder of the copy, in the Python environment: one for each release of Prefect."""
    return Path(sys.prefix, "share", "dynolab", f"prefect-{version('prefect')}")


def begin(folder: Path) -> None:
    """Copies the finished database into a server's folder, unless it has one or there is none."""
    saved = saved_files()
    # A log of writes (`-wal`) whose database is gone would be written into the copy.
    if any(folder.glob(f"{DATABASE}*")) or not saved.exists():
        return
    part = folder / f"new-{DATABASE}"
    shutil.copyfile(saved / DATABASE, part)
    shutil.copyfile(saved / block_types(), folder / block_types())
    part.rename(folder / DATABASE)


def main() -> None:
    """Starts Prefect in a temporary home, and saves what it made there."""
    # Here, as servers' containers have `begin` alone.
    from tasks.runtime.servers.service import PREFECT
    from tasks.runtime.servers.services import start_services

    saved = saved_files()
    shutil.rmtree(saved, ignore_errors=True)
    saved.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=saved.parent) as folder:
        home, made = Path(folder) / "home", Path(folder) / "made"
        made.mkdir()
        with start_services(home, [PREFECT], standing=True) as services:
            services.wait_ready()
        shutil.copyfile(home / PREFECT / block_types(), made / block_types())
        with sqlite3.connect(home / PREFECT / DATABASE) as database:
            database.execute("VACUUM INTO ?", [str(made / DATABASE)])
        made.rename(saved)


if __name__ == "__main__":
    # The server of a terminal's own settings may be another.
    os.environ.pop("DYNOLAB_PREFECT_DATABASE", None)
    main()
