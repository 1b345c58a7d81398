"""PostgreSQL and Redis of this machine, for the services of the Compose file.

They listen on free loopback ports, keep their data in a folder, and end with the test.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tasks.runtime.system.processes import LOOPBACK, free_port
from tasks.runtime.system.secret_files import kept_secret
from tests.flows.lab import until

DATABASES = ("prefect", "mlflow", "sweeps")
ADMIN = "admin"
START_SECONDS = 60.0
PACKAGES = {"postgres": "postgresql", "initdb": "postgresql", "redis-server": "redis-server"}
TIED = ("setpriv", "--pdeathsig", "KILL")
# PostgreSQL refuses to run as root.
AS_POSTGRES = (*TIED, "--reuid", "postgres", "--regid", "postgres", "--clear-groups")


@dataclass(frozen=True)
class Backends:
    """Their addresses: PostgreSQL as `user:password@host:port`, Redis as a URL."""

    postgres: str
    redis: str


@contextmanager
def backends(folder: Path) -> Iterator[Backends]:
    """Start both and wait until they are ready; the end of the block ends them."""
    folder.mkdir(mode=0o755)
    password = kept_secret(folder / "secret" / "password")
    with _postgres(folder, password) as postgres, _redis(folder, password) as redis:
        yield Backends(postgres, redis)


def missing_programs() -> list[str]:
    """Debian packages that are not installed."""
    return sorted({package for name, package in PACKAGES.items() if _program(name) is None})


def _program(name: str) -> str | None:
    """A program on PATH, or in Debian's folder of PostgreSQL's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(found[0]) if found else None)


@contextmanager
def _postgres(folder: Path, password: str) -> Iterator[str]:
    """Yield `user:password@host:port` of a PostgreSQL with our databases."""
    data, port, words = folder / "postgres", free_port(), folder / "words"
    data.mkdir(mode=0o700)
    words.touch(mode=0o600)
    words.write_text(password)
    tied = TIED
    if os.geteuid() == 0:
        tied = AS_POSTGRES
        for path in (data, words):
            os.chown(path, pwd.getpwnam("postgres").pw_uid, -1)
    made = [f"--pwfile={words}", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
    command = [*tied, _program("initdb"), "-D", data, "-U", ADMIN, "--no-sync", *made]
    subprocess.run([str(word) for word in command], check=True, capture_output=True, cwd="/")
    settings = {
        "port": port,
        "listen_addresses": LOOPBACK,
        "unix_socket_directories": "",
        "max_connections": 200,
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    address = f"{ADMIN}:{password}@{LOOPBACK}:{port}"
    command = [*tied, _program("postgres"), "-D", data, *options]
    with _running(command, folder / "postgres.log", lambda: _make_databases(address)):
        yield address


def _make_databases(address: str) -> bool:
    try:
        with psycopg.connect(f"postgresql://{address}/postgres", autocommit=True) as connection:
            for name in DATABASES:
                connection.execute(f'CREATE DATABASE "{name}"'.encode())
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def _redis(folder: Path, password: str) -> Iterator[str]:
    """Yield the URL of a Redis."""
    port, settings = free_port(), folder / "secret" / "redis.conf"
    settings.write_text(f"bind {LOOPBACK}\nport {port}\nrequirepass {password}\ndir {folder}\n")

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, port)) == 0

    with _running([*TIED, _program("redis-server"), settings], folder / "redis.log", answers):
        yield f"redis://:{password}@{LOOPBACK}:{port}/0"


@contextmanager
def _running(command: Sequence[object], log: Path, ready: Callable[[], bool]) -> Iterator[None]:
    words = [str(word) for word in command]
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, cwd="/")
    try:
        until(lambda: ready() or process.poll() is not None, START_SECONDS)
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
