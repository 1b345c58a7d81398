"""Between a worker and its store everything goes wrong; what counts afterwards is whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import boto3
import pytest

from dynolab.errors import StoreError
from dynolab.store import Manifest, Place, Store, filesystem, hash_file
from tests.faults.disk import small_disk
from tests.faults.proxy import (
    Fault,
    Proxy,
    garbles,
    hangs,
    loses_answer,
    proxied,
    refuses,
    resets_request,
    shortens,
    slows,
    truncates,
)
from tests.faults.records import Record, tell

pytestmark = [pytest.mark.faults, pytest.mark.services]

KEY = "bc" * 32
PART = 5 * 2**20  # the least that S3 takes
LARGE = 2 * PART + 1000  # bytes: goes in parts


def uploads(method: str, path: str) -> bool:
    return method in ("PUT", "POST")


def parts(method: str, path: str) -> bool:
    return method == "PUT" and "uploadId" in path


def downloads(method: str, path: str) -> bool:
    return method == "GET" and "shard" in path


def named(name: str) -> Callable[[str, str], bool]:
    return lambda method, path: method == "PUT" and path.partition("?")[0].endswith(name)


@dataclass(frozen=True)
class Bench:
    """A store reached through a proxy, and the same store reached without it."""

    proxy: Proxy
    folder: Path
    bucket: str
    through: Store
    direct: Store

    @property
    def place(self) -> Place:
        return self.through.place("sft", KEY)

    def state(self, step: int) -> Path:
        """A state's files: two shards, one of them large."""
        source = self.folder / f"state-{step}"
        source.mkdir(exist_ok=True)
        made = random.Random(step)
        (source / "shard-0.safetensors").write_bytes(made.randbytes(LARGE))
        (source / "shard-1.safetensors").write_bytes(made.randbytes(10_000))
        (source / "state.json").write_text(f'{{"step": {step}}}')
        return source

    def save(self, step: int) -> None:
        self.place.commit_resume(step, self.state(step), Manifest(stage="sft", key=KEY, version=1))

    def holds(self, step: int, through: Store | None = None) -> bool:
        """Whether exactly this step is what a worker with an empty cache would go on from."""
        settings = {"url": self.direct.files.url, "endpoint": self.direct.files.endpoint}
        store = through or Store(cache=self.folder / f"cache-{uuid4().hex}", **settings)
        found = store.place("sft", KEY).newest_resume()
        assert found is not None
        wanted = {path.name: hash_file(path) for path in self.state(step).iterdir()}
        read = {path.name: hash_file(path) for path in found[1].iterdir()}
        return found[0] == step and {name: read[name] for name in wanted} == wanted

    def left(self) -> list[str]:
        """Uploads that were begun and neither ended nor given up: they are paid for."""
        client = boto3.client("s3", endpoint_url=self.direct.files.endpoint)
        open_ones = client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        return [f"upload {open_one['Key']}" for open_one in open_ones]


@pytest.fixture
def bench(
    s3_server: str, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    monkeypatch.setattr(filesystem, "PART_BYTES", PART)
    monkeypatch.setattr(filesystem, "S3_ROUNDS", 2)
    monkeypatch.setitem(filesystem.S3_CLIENT, "read_timeout", 1.5)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    url = f"s3://{s3_bucket}/lab"
    direct = Store(url, cache=tmp_path / "direct", endpoint=s3_server)
    with proxied(s3_server) as proxy:
        through = Store(url, cache=tmp_path / "cache", endpoint=proxy.address)
        yield Bench(proxy, tmp_path, s3_bucket, through, direct)


COMMITTING: dict[str, tuple[Fault, Callable[[str, str], bool], int | None]] = {
    "the store answers 500 twice": (refuses(500, "InternalError"), uploads, 2),
    "the store says SlowDown twice": (refuses(503, "SlowDown"), uploads, 2),
    "the store hangs once": (hangs, uploads, 1),
    "a connection is reset in the middle of a part": (resets_request, parts, 1),
    "the answer to a part is lost": (loses_answer, parts, 1),
    "the answer to the manifest is lost": (loses_answer, named("/manifest.json"), 1),
    "the answer to COMMITTED is lost": (loses_answer, named("/COMMITTED"), 1),
    "the link is slow": (slows(6e6), lambda method, path: True, 10**6),
    "the store answers 500": (refuses(500, "InternalError"), uploads, None),
    "the store hangs": (hangs, uploads, None),
    "every connection is reset": (resets_request, parts, None),
    "writes are denied": (refuses(403, "AccessDenied"), uploads, None),
    "the manifest cannot be written": (
        refuses(500, "InternalError"),
        named("/manifest.json"),
        None,
    ),
    "COMMITTED cannot be written": (refuses(403, "AccessDenied"), named("/COMMITTED"), None),
}
"""What goes wrong during a commit: how, at which requests, and how often (None: for good)."""


@pytest.mark.parametrize("name", COMMITTING)
def test_a_commit_outlives_what_passes_and_otherwise_counts_for_nothing(
    name: str, bench: Bench, record_property: Record
) -> None:
    bench.save(10)
    fault, strikes, times = COMMITTING[name]
    bench.proxy.breaks(fault, strikes, times)
    if times is None:
        with pytest.raises(StoreError, match="cannot"):
            bench.save(20)
        bench.proxy.heals()
        assert bench.holds(10)
    bench.save(20)
    assert bench.proxy.struck > 0
    bench.proxy.heals()
    assert bench.holds(20)
    tell(record_property, f"{name} during a commit", left=bench.left(), metrics_lost=None)


READING: dict[str, tuple[Fault, int | None]] = {
    "the store answers 500 twice": (refuses(500, "InternalError"), 2),
    "the store hangs once": (hangs, 1),
    "a body is truncated": (truncates, 1),
    "a body is shorter than it was": (shortens, 1),
    "a bit of a body turns": (garbles, 1),
    "all bodies are truncated": (truncates, None),
    "downloads are refused": (refuses(403, "AccessDenied"), None),
    "downloads hang": (hangs, None),
}
"""What goes wrong during a resume, and how often (None: for good)."""


@pytest.mark.parametrize("name", READING)
def test_a_resume_outlives_what_passes_and_is_otherwise_one_typed_error(
    name: str, bench: Bench, record_property: Record
) -> None:
    bench.save(10)
    bench.save(20)
    fault, times = READING[name]
    bench.proxy.breaks(fault, downloads, times)
    if times is None:
        with pytest.raises(StoreError, match="cannot read"):
            bench.place.newest_resume()
        bench.proxy.heals()
    assert bench.holds(20, bench.through)
    assert bench.proxy.struck > 0
    tell(record_property, f"{name} during a resume", left=bench.left(), metrics_lost=None)


def test_a_full_disk_under_the_store_believes_nothing_half_written(
    tmp_path: Path, record_property: Record
) -> None:
    with small_disk(tmp_path / "disk", 2**20) as disk:
        place = Store(f"file://{disk}/store", cache=tmp_path / "cache").place("sft", KEY)

        def save(step: int, size: int) -> None:
            source = tmp_path / f"source-{step}-{size}"
            source.mkdir()
            (source / "shard-0.safetensors").write_bytes(bytes(size))
            place.commit_resume(step, source, Manifest(stage="sft", key=KEY, version=1))

        def newest() -> int | None:
            found = place.newest_resume()
            return found and found[0]

        save(10, 400_000)
        with pytest.raises(StoreError, match="No space left"):
            save(20, 900_000)
        left = [str(path) for path in disk.rglob("*.part")]
        left += [str(path) for path in disk.rglob("step-00000020/attempt-*")]
        assert newest() == 10
        save(20, 300_000)
        assert newest() == 20
    tell(
        record_property,
        "the disk under a file store is full during a commit",
        left=left,
        metrics_lost=None,
    )
