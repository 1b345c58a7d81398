"""PostgreSQL and Redis of this machine, for the services of the Compose file.

They listen on free loopback ports, keep their data and password in a folder, and end with the test.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dynolab.errors import ServiceFailed
from tasks.runtime.system.processes import (
    LOOPBACK,
    Process,
    free_port,
    last_lines,
    start_child,
    stop_group,
)
from tasks.runtime.system.secret_files import kept_secret, own_folder, write_private

POSTGRES_USER = "postgres"
DATABASES = ("prefect", "mlflow", "sweeps")
ADMIN = "admin"
START_SECONDS = 60.0
_PACKAGES = {"postgres": "postgresql", "initdb": "postgresql", "redis-server": "redis-server"}


@dataclass(frozen=True)
class Backends:
    """Their addresses: PostgreSQL as `user:password@host:port`, Redis as a URL."""

    postgres: str
    redis: str


@contextmanager
def backends(folder: Path) -> Iterator[Backends]:
    """Start both and wait until they are ready; the end of the block ends them."""
    own_folder(folder)
    if os.geteuid() == 0:  # PostgreSQL's own user has to get through to its folder
        os.chown(folder, -1, pwd.getpwnam(POSTGRES_USER).pw_gid)
        folder.chmod(0o710)
    password = kept_secret(folder / "password")
    with _postgres(folder, password) as postgres, _redis(folder, password) as redis:
        yield Backends(postgres, redis)


def missing_programs() -> list[str]:
    """Debian packages that are not installed."""
    return sorted({package for name, package in _PACKAGES.items() if _program_path(name) is None})


def _program_path(program: str) -> Path | None:
    """Find a program on PATH, or in Debian's folder of PostgreSQL programs."""
    if on_path := shutil.which(program):
        return Path(on_path)
    return next(iter(sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))), None)


def _program(name: str) -> str:
    path = _program_path(name)
    assert path is not None, f"{name} is not installed: apt-get install {_PACKAGES[name]}"
    return str(path)


@contextmanager
def _postgres(home: Path, password: str) -> Iterator[str]:
    """Yield `user:password@host:port` of a PostgreSQL with our databases."""
    program, initdb = _program("postgres"), _program("initdb")
    user = POSTGRES_USER if os.geteuid() == 0 else "-"
    data, port = home / "postgres", free_port()
    if not (data / "PG_VERSION").exists():
        _initialise(data, initdb, user, password)
    settings = {
        "port": port,
        "listen_addresses": LOOPBACK,
        "unix_socket_directories": "",
        "max_connections": 200,
        "authentication_timeout": 10,
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    log = home / "logs" / "postgres.log"
    with _running("postgres", [user, program, "-D", str(data), *options], log) as process:
        address = f"{ADMIN}:{password}@{LOOPBACK}:{port}"
        _wait("postgres", process, log, lambda: _make_databases(address))
        yield address


def _initialise(data: Path, initdb: str, user: str, password: str) -> None:
    """Create a new database folder, owned by the user that PostgreSQL runs as."""
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(mode=0o700)
    password_file = data.with_name("postgres.words")
    write_private(password_file, password)
    rights: dict[str, str] = {}
    if user != "-":
        owner = pwd.getpwnam(user)
        for path in (data, password_file):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        rights = {"user": user, "group": str(owner.pw_gid)}
    command = [
        initdb,
        "-D",
        str(data),
        "-U",
        ADMIN,
        "--auth=scram-sha-256",
        f"--pwfile={password_file}",
        "--encoding=UTF8",
        "--locale=C",
        "--no-sync",
    ]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd="/",
            extra_groups=[] if rights else None,
            user=rights.get("user"),
            group=int(rights["group"]) if rights else None,
        )
    finally:
        password_file.unlink()
    if done.returncode:
        shutil.rmtree(data, ignore_errors=True)
        raise ServiceFailed("postgres", (done.stdout + done.stderr).splitlines()[-10:])


def _make_databases(address: str) -> bool:
    import psycopg

    try:
        with psycopg.connect(f"postgresql://{address}/postgres", autocommit=True) as connection:
            existing = {row[0] for row in connection.execute("SELECT datname FROM pg_database")}
            for name in DATABASES:
                if name not in existing:
                    connection.execute(f'CREATE DATABASE "{name}"'.encode())
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def _redis(home: Path, password: str) -> Iterator[str]:
    """Yield the URL of a Redis that keeps its data in the home."""
    program, port = _program("redis-server"), free_port()
    (home / "redis").mkdir(exist_ok=True)
    settings = home / "redis.conf"  # all users could read a password on the command line
    write_private(
        settings,
        f"bind {LOOPBACK}\nport {port}\nprotected-mode yes\nrequirepass {password}\n"
        f'dir "{home / "redis"}"\nappendonly yes\n',
    )
    log = home / "logs" / "redis.log"
    with _running("redis", ["-", program, str(settings)], log) as process:
        _wait("redis", process, log, lambda: _answers(port))
        yield f"redis://:{password}@{LOOPBACK}:{port}/0"


@contextmanager
def _running(name: str, arguments: list[str], log: Path) -> Iterator[Process]:
    process = start_child(
        "tasks.runtime.system.program", arguments, environment=_plain_environment(), log=log
    )
    try:
        yield process
    finally:
        stop_group(process)


def _plain_environment() -> dict[str, str]:
    """Environment for programs that are not ours: only these variables, no secrets."""
    return {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}


def _answers(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def _wait(name: str, process: Process, log: Path, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if process.poll() is not None:
            raise ServiceFailed(name, last_lines(log))
        if time.monotonic() > deadline:
            raise ServiceFailed(name, [*last_lines(log), f"(no answer in {START_SECONDS:.0f} s)"])
        time.sleep(0.1)
