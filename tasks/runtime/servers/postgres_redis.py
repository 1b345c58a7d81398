"""What the servers stand on in the full profile: PostgreSQL and Redis, as processes.

They are the machine's own packages, on free loopback ports, with data folders and passwords of
their own in the home; and they end with the command that started them.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dynolab.errors import ConfigError, ServiceFailed
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
class Backing:
    """Variables with which servers, and clients of the servers, use what runs."""

    servers: Mapping[str, str]
    clients: Mapping[str, str]


@contextmanager
def backing_services(home: Path, environment: Mapping[str, str] = os.environ) -> Iterator[Backing]:
    """PostgreSQL and Redis, ready; results lie where `environment` says, else in the home.

    **Raises** `ConfigError` where a program is missing, `ServiceFailed` where one does not start.
    """
    folder = own_folder(home.resolve())
    let_postgres_through(folder)
    password = kept_secret(folder / "password")
    with ExitStack() as started:
        postgres = started.enter_context(_postgres(folder, password))
        redis = started.enter_context(_redis(folder, password))
        store = {
            name: value
            for name, value in environment.items()
            if name.startswith("AWS_") or name in ("DYNOLAB_STORE", "DYNOLAB_STORE_ENDPOINT")
        }
        yield variables(postgres, redis, store)


def let_postgres_through(folder: Path) -> None:
    """Started as root, PostgreSQL runs as a user of its own, who has to reach its own folder."""
    if os.geteuid() == 0:
        with suppress(KeyError):  # no such user, so no PostgreSQL
            os.chown(folder, -1, pwd.getpwnam(POSTGRES_USER).pw_gid)
            folder.chmod(0o710)


def variables(postgres: str, redis: str, store: Mapping[str, str]) -> Backing:
    """What servers and clients are told.

    **Arguments:** `postgres`: `user:password@host:port`. `redis`: its URL. `store`: the results'
    address and its keys, where they are set.
    """
    servers = {
        "DYNOLAB_PREFECT_DATABASE": f"postgresql+asyncpg://{postgres}/prefect",
        "DYNOLAB_MLFLOW_DATABASE": f"postgresql+psycopg://{postgres}/mlflow",
        "PREFECT_MESSAGING_BROKER": "prefect_redis.messaging",
        "PREFECT_MESSAGING_CACHE": "prefect_redis.messaging",
        "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": "prefect_redis.ordering",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect_redis.lease_storage",
        "PREFECT_REDIS_MESSAGING_URL": redis,
        **_artifacts(store),
    }
    clients = {"DYNOLAB_SWEEPS": f"postgresql+psycopg://{postgres}/sweeps", **store}
    return Backing(servers, clients)


def missing_programs() -> list[str]:
    """Debian packages without which the full profile cannot start."""
    return sorted({package for name, package in _PACKAGES.items() if _program_path(name) is None})


def write_environment(file: Path, variables: Mapping[str, str]) -> None:
    """A file that a shell reads (`set -a; . FILE`), for its owner alone: it holds passwords."""
    content = "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))
    write_private(file, content)


def _program_path(program: str) -> Path | None:
    """A program on the path, or where Debian keeps PostgreSQL's."""
    if on_path := shutil.which(program):
        return Path(on_path)
    return next(iter(sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))), None)


def _program(name: str) -> str:
    path = _program_path(name)
    if path is None:
        raise ConfigError(
            "PROFILE",
            "full",
            f"needs {name}, which is not installed: apt-get install {_PACKAGES[name]}",
        )
    return str(path)


@contextmanager
def _postgres(home: Path, password: str) -> Iterator[str]:
    """Yields `user:password@host:port` of a PostgreSQL with our databases."""
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
    """A new database folder, owned by the user that PostgreSQL runs as."""
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(mode=0o700)
    words = data.with_name("postgres.words")
    write_private(words, password)
    rights: dict[str, str] = {}
    if user != "-":
        owner = pwd.getpwnam(user)
        for path in (data, words):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        rights = {"user": user, "group": str(owner.pw_gid)}
    command = [
        initdb,
        "-D",
        str(data),
        "-U",
        ADMIN,
        "--auth=scram-sha-256",
        f"--pwfile={words}",
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
        words.unlink()
    if done.returncode:
        shutil.rmtree(data, ignore_errors=True)
        raise ServiceFailed("postgres", (done.stdout + done.stderr).splitlines()[-10:])


def _make_databases(address: str) -> bool:
    import psycopg

    try:
        with psycopg.connect(f"postgresql://{address}/postgres", autocommit=True) as connection:
            there = {row[0] for row in connection.execute("SELECT datname FROM pg_database")}
            for name in DATABASES:
                if name not in there:
                    connection.execute(f'CREATE DATABASE "{name}"'.encode())
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def _redis(home: Path, password: str) -> Iterator[str]:
    """Yields the URL of a Redis whose data lie in the home."""
    program, port = _program("redis-server"), free_port()
    (home / "redis").mkdir(exist_ok=True)
    settings = home / "redis.conf"  # a password on the command line could be read by everybody
    write_private(
        settings,
        f"bind {LOOPBACK}\nport {port}\nprotected-mode yes\nrequirepass {password}\n"
        f'dir "{home / "redis"}"\nappendonly yes\n',
    )
    log = home / "logs" / "redis.log"
    with _running("redis", ["-", program, str(settings)], log) as process:
        _wait("redis", process, log, lambda: _answers(port))
        yield f"redis://:{password}@{LOOPBACK}:{port}/0"


def _artifacts(store: Mapping[str, str]) -> dict[str, str]:
    """Where MLflow's server keeps artifacts: beside the results, where they lie in S3."""
    url = store.get("DYNOLAB_STORE", "").rstrip("/")
    if not url.startswith("s3://"):
        return {}
    settings = {"DYNOLAB_MLFLOW_ARTIFACTS": f"{url}-mlflow"}
    if endpoint := store.get("DYNOLAB_STORE_ENDPOINT"):
        settings["MLFLOW_S3_ENDPOINT_URL"] = endpoint
    return settings | {name: value for name, value in store.items() if name.startswith("AWS_")}


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
    """What a foreign program needs of ours: none of it is a secret."""
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
