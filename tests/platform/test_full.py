"""The full profile: real PostgreSQL and Redis, and no secret where others read."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import redis

from dynolab.errors import ConfigError
from flows.sweep import Dimension, SweepParameters, SweepStudy
from tasks.runtime.servers import postgres_redis
from tasks.runtime.servers.postgres_redis import (
    backing_services,
    missing_programs,
    write_environment,
)
from tests.flows.lab import SMALL, Lab
from tests.platform.conftest import Platform, platform_of

MISSING = missing_programs()

needs_programs = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: apt-get install {' '.join(MISSING)}"
)


@pytest.fixture(scope="module")
def full() -> Iterator[Platform]:
    # PostgreSQL's own user has to get through to its folder, and pytest's are closed to others.
    folder = Path(tempfile.mkdtemp(prefix="dynolab-full-"))
    folder.chmod(0o755)
    try:
        with platform_of(Lab(folder), "--profile", "full") as running:
            yield running
    finally:
        shutil.rmtree(folder)


def variables(platform: Platform) -> dict[str, str]:
    lines = (platform.lab.home / "full" / "environment").read_text().splitlines()
    return {name: shlex.split(value)[0] for name, _, value in (ln.partition("=") for ln in lines)}


def command_lines() -> list[bytes]:
    """What every user of the machine can read of its processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            found.append(path.read_bytes())
    return found


@needs_programs
@pytest.mark.services
def test_the_servers_keep_everything_in_postgres_and_tell_no_password(full: Platform) -> None:
    known, home = variables(full), full.lab.home / "full"
    secrets = [(home / name).read_text() for name in ("password", "token")]
    address = known["DYNOLAB_SWEEPS"].replace("+psycopg", "")
    for name, table in (("prefect", "deployment"), ("mlflow", "experiments")):
        with psycopg.connect(address.rpartition("/")[0] + f"/{name}") as connection:
            count = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
        assert count and count[0] > 0
    assert not list(home.rglob("*.db")), "nothing is left to SQLite"
    for file in home.glob("logs/*.log"):
        assert not any(secret in file.read_text(errors="replace") for secret in secrets), file
    for name in ("password", "token", "environment", "redis.conf"):
        assert (home / name).stat().st_mode & 0o077 == 0, name
    running = command_lines()
    assert any(str(home).encode() in line for line in running)
    assert not any(secret.encode() in line for line in running for secret in secrets)


@needs_programs
@pytest.mark.services
def test_sweeps_are_kept_in_postgres(full: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNOLAB_SWEEPS", variables(full)["DYNOLAB_SWEEPS"])
    parameters = SweepParameters(name="kept", space={"a": Dimension(values=(1, 2))})
    number = SweepStudy(parameters).ask()
    assert number is not None
    SweepStudy(parameters).complete(number, 0.5)
    assert [row.state for row in SweepStudy(parameters).rows()] == ["complete"]


@needs_programs
@pytest.mark.services
@pytest.mark.study
def test_a_run_brings_no_secret_into_what_is_kept(
    full: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = variables(full)
    monkeypatch.setenv("DYNOLAB_SWEEPS", known["DYNOLAB_SWEEPS"])
    quiet = SweepParameters(name="quiet", space={"a": Dimension(values=(1, 2))})
    assert SweepStudy(quiet).ask() == 0
    run = full.start("train/sft", study_text=SMALL.read_text(), name="full")
    assert full.awaited_end(run) == "Completed"
    home = full.lab.home / "full"
    secrets = {name: (home / name).read_text().strip() for name in ("password", "token", "key")}
    secrets |= {name: known[name] for name in known if name in SECRET_VARIABLES}
    assert set(SECRET_VARIABLES) <= secrets.keys()
    seen_at = set()
    for place, content in everything_kept(home, known):
        seen_at.add(place.partition(" ")[0])
        for name, secret in secrets.items():
            assert secret.encode() not in content, f"{name} stands in {place}"
    assert seen_at == {"prefect", "mlflow", "sweeps", "file"}


SECRET_VARIABLES = (
    "DYNOLAB_KEY",
    "DYNOLAB_SWEEPS",
    "MLFLOW_TRACKING_PASSWORD",
    "PREFECT_CLIENT_CUSTOM_HEADERS",
)
PRIVATE = ("password", "token", "environment", "redis.conf", "key")


def everything_kept(home: Path, known: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """Every row of every database, and every file that is not private, results among them."""
    server = known["DYNOLAB_SWEEPS"].replace("+psycopg", "").rpartition("/")[0]
    for database in postgres_redis.DATABASES:
        with psycopg.connect(f"{server}/{database}") as connection:
            named = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname='public'")
            for (table,) in named.fetchall():
                rows = connection.execute(f'SELECT t::text FROM "{table}" t'.encode()).fetchall()
                yield f"{database} {table}", "\n".join(row for (row,) in rows).encode()
    for file in home.rglob("*"):
        inside = file.relative_to(home).parts
        if file.is_file() and inside[0] != "postgres" and file.name not in PRIVATE:
            yield f"file {file}", file.read_bytes()


@needs_programs
def test_redis_lets_nobody_in_without_its_password_wherever_the_home_is(tmp_path: Path) -> None:
    home = tmp_path / "a home"
    home.mkdir()
    with postgres_redis._redis(home, "word") as url:
        client = redis.Redis.from_url(url)
        assert client.ping()
        client.close()
        with pytest.raises(redis.AuthenticationError):
            redis.Redis.from_url(url.replace("word", "guess")).ping()


def test_a_missing_program_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_redis, "_program_path", lambda program: None)
    with pytest.raises(ConfigError, match=r"needs postgres.*apt-get install postgresql"):
        backing_services(tmp_path, {}).__enter__()


def test_a_file_with_passwords_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "environment"
    before = os.umask(0)
    try:
        write_environment(file, {"B": "two words", "A": f"it's $(touch {tmp_path}/ran)"})
    finally:
        os.umask(before)
    shown = subprocess.run(["sh", "-c", f'. {file}; echo "$A,$B"'], capture_output=True, text=True)
    assert shown.stdout == f"it's $(touch {tmp_path}/ran),two words\n"
    assert not (tmp_path / "ran").exists()
    assert file.stat().st_mode & 0o777 == 0o600
