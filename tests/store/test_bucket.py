"""What is asked of an S3 file system, and what its errors tell a user to change."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from dynolab.errors import ConfigError, StoreError
from dynolab.store import FileEntry, Store, filesystem
from dynolab.store.filesystem import S3_CLIENT, Files
from tests.messages import exactly
from tests.store.results import contents

URL, ENDPOINT = "s3://bucket/lab", "http://localhost:9"


class NoCredentialsError(Exception):
    """Called as botocore calls it."""


class Bucket:
    """Objects by their whole path, and the requests that were made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.creates_once = True
        self.error: Exception | None = None
        local = fsspec.filesystem("file", auto_mkdir=True, skip_instance_cache=True)
        self._kept = DirFileSystem(str(folder), local)

    @property
    def objects(self) -> dict[str, bytes]:
        return contents(self.folder)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of a file system."""

        def asked(*arguments: Any, **options: Any) -> Any:
            self.requests.append((name, arguments, dict(options)))
            if self.error is not None:
                raise self.error
            if not self.creates_once:
                options.pop("mode", None)
            return getattr(self._kept, name)(*arguments, **options)

        return asked


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path / "objects")


@pytest.fixture
def files(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Files:
    files = Files(URL, ENDPOINT)
    monkeypatch.setattr(files, "_fs", bucket)
    return files


@pytest.mark.parametrize(
    ("url", "endpoint", "scheme", "options"),
    [
        ("file:///lab/store/", None, "file", {}),
        (URL, None, "s3", {"endpoint_url": None, "config_kwargs": S3_CLIENT}),
        (URL, ENDPOINT, "s3", {"endpoint_url": ENDPOINT, "config_kwargs": S3_CLIENT}),
    ],
)
def test_no_listing_is_kept_and_no_file_system_is_shared(
    url: str,
    endpoint: str | None,
    scheme: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A listing that is kept would hide what other processes commit."""
    calls: list[tuple[str, dict[str, Any]]] = []
    made = SimpleNamespace(retries=None)

    def filesystem_of(scheme: str, **options: Any) -> SimpleNamespace:
        calls.append((scheme, options))
        return made

    monkeypatch.setattr(fsspec, "filesystem", filesystem_of)
    Files(url, endpoint)
    assert calls == [(scheme, {"use_listings_cache": False, "skip_instance_cache": True} | options)]
    assert made.retries == (3 if scheme == "s3" else None)


KINDS = "use file:///absolute/folder or s3://bucket/prefix"
ABSOLUTE = "a file:// store needs an absolute folder"


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("", KINDS),
        ("store", KINDS),
        ("/abs", KINDS),
        ("gs://bucket/x", KINDS),
        ("s3://", KINDS),
        ("file:///", KINDS),
        ("s3:///", KINDS),
        ("file://relative", ABSOLUTE),
        ("file://relative/store", ABSOLUTE),
    ],
)
def test_an_address_of_no_store_is_refused_with_the_remedy(url: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=exactly(f"DYNOLAB_STORE = {url!r}: {remedy}")):
        Files(url)


def test_without_its_library_an_address_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(scheme: str, **options: Any) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    expected = (
        f"DYNOLAB_STORE = {URL!r}: install its file system, in Dynolab's folder: pip install "
        "'.[platform]' (Install s3fs to access S3)"
    )
    with pytest.raises(ConfigError, match=exactly(expected)):
        Files(URL)


def test_objects_lie_under_bucket_and_prefix(files: Files, bucket: Bucket, tmp_path: Path) -> None:
    files.create("a/one", b"1")
    files.replace("a/b/two", b"22")
    (tmp_path / "source").write_bytes(b"333")
    entry = files.upload(tmp_path / "source", "three")
    assert entry == FileEntry(size=3, sha256=hashlib.sha256(b"333").hexdigest())
    assert bucket.objects == {
        "bucket/lab/a/one": b"1",
        "bucket/lab/a/b/two": b"22",
        "bucket/lab/three": b"333",
    }
    assert [(name, options.get("mode")) for name, _, options in bucket.requests] == [
        ("pipe_file", "create"),
        ("pipe_file", None),
        ("put_file", None),
    ]
    assert (files.local("a"), files.address("a")) == (None, "s3://bucket/lab/a")
    assert files.sizes("a") == {"one": 1, "b/two": 2}
    assert sorted(files.children("a")) == ["b", "one"]
    assert files.children("nowhere") == [] and files.sizes("nowhere") == {}
    files.download("three", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"333"
    for _ in range(2):
        files.remove("three")
    files.remove_folder("a")
    assert bucket.objects == {}


def test_an_empty_object_is_read_without_a_range(files: Files, bucket: Bucket) -> None:
    files.replace("empty", b"")
    assert files.read("empty") == b""
    assert bucket.requests[1:] == [("size", ("bucket/lab/empty",), {})]


def test_an_object_is_created_once(files: Files, bucket: Bucket) -> None:
    files.create("marker", b"first")
    files.create("marker", b"first")  # its own, from a request that was repeated
    with pytest.raises(FileExistsError, match=exactly("s3://bucket/lab/marker")):
        files.create("marker", b"second")
    assert bucket.objects == {"bucket/lab/marker": b"first"}


def test_an_answer_that_was_lost_is_not_a_refusal(
    files: Files, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there decides where the store refused; without an answer nothing is asked."""
    objects: dict[str, bytes] = {}
    monkeypatch.setattr(files, "_existing", objects.get)
    bucket.error = caused(StoreError("refused"), OSError("412"))
    with pytest.raises(StoreError, match="refused"):
        files.create("file", b"mine")
    objects["file"] = b"mine"
    files.create("file", b"mine")
    objects["file"] = b"another's"
    with pytest.raises(FileExistsError, match="s3://bucket/lab/file"):
        files.create("file", b"mine")
    objects["file"] = b"mine"
    bucket.error = caused(StoreError("no answer"), NoCredentialsError())
    with pytest.raises(StoreError, match="no answer"):
        files.create("file", b"mine")


@pytest.mark.parametrize(("size", "part"), [(29, 10), (30, 10), (31, 11)])
def test_a_large_file_goes_in_as_many_parts_as_s3_takes(
    size: int,
    part: int,
    files: Files,
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filesystem, "PART_BYTES", 10)
    monkeypatch.setattr(filesystem, "S3_PARTS", 3)
    content = b"x" * size
    (tmp_path / "file").write_bytes(content)
    entry = files.upload(tmp_path / "file", "folder/file")
    assert entry == FileEntry(size=size, sha256=hashlib.sha256(content).hexdigest())
    assert bucket.objects == {"bucket/lab/folder/file": content}
    options = {"chunksize": part, "max_concurrency": filesystem.PARTS_AT_ONCE}
    sent = ("put_file", (str(tmp_path / "file"), "bucket/lab/folder/file"), options)
    assert bucket.requests == [sent]


@pytest.mark.parametrize(
    ("content", "later"),
    [(b"before and after", 0), (b"after!", 1)],
    ids=["another size", "another time"],
)
def test_a_file_that_changes_while_it_is_sent_is_refused(
    content: bytes,
    later: int,
    files: Files,
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"before")
    written = source.stat().st_mtime_ns

    def put_file(*paths: str, **options: int) -> None:
        source.write_bytes(content)
        os.utime(source, ns=(written, written + later))

    monkeypatch.setattr(bucket, "put_file", put_file)
    with pytest.raises(StoreError, match="changed while it was sent"):
        files.upload(source, "target")


@pytest.mark.parametrize(
    ("call", "doing"),
    [
        (lambda files, local: files.upload(local, "place"), "write"),
        (lambda files, local: files.download("place", local), "read"),
        (lambda files, local: files.read("place"), "read"),
        (lambda files, local: files.create("place", b""), "create"),
        (lambda files, local: files.replace("place", b""), "write"),
        (lambda files, local: files.sizes("place"), "list"),
        (lambda files, local: files.children("place"), "list"),
        (lambda files, local: files.remove("place"), "delete"),
        (lambda files, local: files.remove_folder("place"), "delete"),
    ],
    ids=[
        "upload",
        "download",
        "read",
        "create",
        "replace",
        "sizes",
        "children",
        "remove",
        "remove_folder",
    ],
)
def test_what_goes_wrong_says_at_what_and_where(
    call: Callable[[Files, Path], object],
    doing: str,
    files: Files,
    bucket: Bucket,
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"data")
    bucket.error = ValueError("no answer")
    expected = exactly(f"cannot {doing} {URL}/place: ValueError: no answer")
    with pytest.raises(StoreError, match=expected) as caught:
        call(files, tmp_path / "file")
    assert caught.value.__cause__ is bucket.error


def test_a_store_is_proved_by_one_object_that_is_taken_away_again(
    files: Files, bucket: Bucket
) -> None:
    files.check_writable()
    assert bucket.objects == {}
    changes = [name for name, *_ in bucket.requests if name in ("pipe_file", "rm_file")]
    assert changes == ["pipe_file", "pipe_file", "rm_file"]
    (probe,) = {arguments[0] for _, arguments, _ in bucket.requests}
    UUID(probe.removeprefix("bucket/lab/probe-"))
    bucket.creates_once = False
    expected = (
        f"DYNOLAB_STORE = {URL!r}: its server ignores If-None-Match and overwrites files; "
        "use another server"
    )
    with pytest.raises(ConfigError, match=exactly(expected)):
        files.check_writable()


def caused(*errors: Exception) -> Exception:
    """The first of the errors, each caused by the next."""
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


CREATE = f"DYNOLAB_STORE = {URL!r}: create the bucket 'bucket' or name one that exists "
CREDENTIALS = (
    "AWS_ACCESS_KEY_ID = 'tester': the object store refuses these credentials: set "
    f"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of a user who may write to {URL} (Forbidden)"
)
START = "start the object store there or correct the address "


@pytest.mark.parametrize(
    ("error", "endpoint", "expected"),
    [
        (PermissionError("Forbidden"), ENDPOINT, CREDENTIALS),
        (NoCredentialsError("Forbidden"), ENDPOINT, CREDENTIALS),
        (FileNotFoundError("none of that name"), ENDPOINT, f"{CREATE}(none of that name)"),
        (
            caused(
                StoreError("cannot do it"), StoreError("cannot"), FileNotFoundError("no bucket")
            ),
            ENDPOINT,
            f"{CREATE}(no bucket)",
        ),
        (
            TimeoutError("no answer"),
            ENDPOINT,
            f"DYNOLAB_STORE_ENDPOINT = {ENDPOINT!r}: {START}(TimeoutError: no answer)",
        ),
        (
            TimeoutError("no answer"),
            None,
            f"DYNOLAB_STORE_ENDPOINT = None: {START}(TimeoutError: no answer)",
        ),
        (
            StoreError("for no known reason"),
            ENDPOINT,
            f"DYNOLAB_STORE_ENDPOINT = {ENDPOINT!r}: {START}(StoreError: for no known reason)",
        ),
    ],
)
def test_what_lies_at_the_bottom_of_an_error_says_what_to_change(
    error: Exception,
    endpoint: str | None,
    expected: str,
    files: Files,
    bucket: Bucket,
    aws_environment: None,
) -> None:
    files.endpoint, bucket.error = endpoint, error
    with pytest.raises(ConfigError, match=exactly(expected)):
        files.check_writable()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    url = f"file://{tmp_path}/file/store"
    expected = (
        rf"\ADYNOLAB_STORE = '{url}': use a folder that this user can write to "
        r"\(NotADirectoryError: .*\)\Z"
    )
    with pytest.raises(ConfigError, match=expected):
        Files(url).check_writable()


def test_a_store_is_proved_writable_once(bucket: Bucket, tmp_path: Path) -> None:
    store = Store(URL, cache=tmp_path, endpoint=ENDPOINT)
    store.files._fs = bucket
    bucket.error = TimeoutError("no answer")
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"DYNOLAB_STORE_ENDPOINT = '{ENDPOINT}'"):
            store.check_writable()
    bucket.error = None
    store.check_writable()
    bucket.error = TimeoutError("no answer")
    store.check_writable()


@pytest.mark.parametrize(
    ("server", "bucket", "key", "field", "value", "remedy"),
    [
        (
            "s3_server",
            "no-such-bucket",
            "tester",
            "DYNOLAB_STORE",
            "s3://no-such-bucket/lab",
            "create the bucket 'no-such-bucket'",
        ),
        (
            "strict_s3_server",
            "bucket",
            "tester",
            "AWS_ACCESS_KEY_ID",
            "tester",
            "AWS_SECRET_ACCESS_KEY",
        ),
        ("s3_server", "bucket", None, "AWS_ACCESS_KEY_ID", None, "AWS_SECRET_ACCESS_KEY"),
    ],
    ids=["a missing bucket", "wrong credentials", "no credentials"],
)
@pytest.mark.services
def test_a_server_that_refuses(
    server: str,
    bucket: str,
    key: str | None,
    field: str,
    value: str | None,
    remedy: str,
    aws_environment: None,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = request.getfixturevalue(server)
    monkeypatch.setenv("HOME", str(tmp_path))
    if key is None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match=remedy) as caught:
        Store(f"s3://{bucket}/lab", cache=tmp_path, endpoint=endpoint).check_writable()
    assert (caught.value.field, caught.value.value) == (field, value)
    assert "secret" not in str(caught.value)


def test_nobody_at_the_endpoint(
    aws_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with socket.socket() as held:  # bound but not listening: connections are refused
        held.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ConfigError) as caught:
            Store("s3://bucket/lab", cache=tmp_path, endpoint=endpoint).check_writable()
    assert (caught.value.field, caught.value.value) == ("DYNOLAB_STORE_ENDPOINT", endpoint)


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        (
            "dynolab.store, tasks.runtime.stage, tasks.runtime.system.settings",
            "torch transformers mlflow prefect s3fs deepspeed",
        ),
        (
            "tasks.runtime.track.progress",
            "torch transformers mlflow prefect rich requests pydantic",
        ),
        ("flows.study.flow, flows.run", "transformers plotly pandas mlflow deepspeed"),
        ("flows.deploy, flows.schedule", "torch numpy transformers mlflow"),
    ],
)
def test_what_a_command_imports_first_costs_no_large_package(modules: str, heavy: str) -> None:
    program = (
        f"import sys, {modules};"
        f"heavy = set('{heavy}'.split());"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
