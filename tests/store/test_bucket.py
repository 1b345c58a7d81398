"""What is asked of an S3 file system, and what its errors tell a user to change."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import fsspec
import pytest

from dynolab.errors import ConfigError, CorruptData, StoreError
from dynolab.store import Store, filesystem
from dynolab.store.filesystem import S3_CLIENT, Files

URL, ENDPOINT = "s3://bucket/lab", "http://localhost:9"


class Bucket:
    """Objects by their whole path, and the requests that changed them."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, ...]] = []
        self.creates_once = True
        self.error: Exception | None = None

    def _met(self, *request: str) -> None:
        self.requests.append(request)
        if self.error is not None:
            raise self.error

    def _of(self, path: str) -> bytes:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path]

    def size(self, path: str) -> int:
        self._met("size", path)
        return len(self._of(path))

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        self._met("cat", path, str(start), str(end))
        return self._of(path)[start:end]

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        self._met(mode, path)
        if mode == "create" and path in self.objects and self.creates_once:
            raise FileExistsError(path)
        self.objects[path] = data

    def put_file(self, source: str, target: str, **how: int) -> None:
        self._met("put", target)
        self.objects[target] = Path(source).read_bytes()

    def get_file(self, path: str, target: str) -> None:
        self._met("get", path)
        Path(target).write_bytes(self._of(path))

    def find(self, folder: str, detail: bool) -> dict[str, dict[str, str]]:
        assert detail
        below = {path for path in self.objects if path.startswith(f"{folder}/")}
        return {path: {"size": str(len(self.objects[path]))} for path in below}

    def ls(self, folder: str, detail: bool) -> list[str]:
        assert not detail
        below = {path.removeprefix(f"{folder}/") for path in self.find(folder, detail=True)}
        if not below:
            raise FileNotFoundError(folder)
        names = {f"{path.partition('/')[0]}{'/' if '/' in path else ''}" for path in below}
        return [f"{folder}/{name}" for name in sorted(names)]

    def rm_file(self, path: str) -> None:
        self._met("rm", path)
        self._of(path)
        del self.objects[path]

    def rm(self, folder: str, recursive: bool) -> None:
        assert recursive
        for path in self.find(folder, detail=True):
            del self.objects[path]


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def files(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Files:
    files = Files(URL, ENDPOINT)
    monkeypatch.setattr(files, "_fs", bucket)
    return files


@pytest.mark.parametrize(
    ("url", "endpoint", "asked"),
    [
        ("file:///lab/store/", None, ("file", {})),
        (URL, None, ("s3", {"endpoint_url": None, "config_kwargs": S3_CLIENT})),
        (URL, ENDPOINT, ("s3", {"endpoint_url": ENDPOINT, "config_kwargs": S3_CLIENT})),
    ],
)
def test_no_listing_is_kept_and_no_file_system_is_shared(
    url: str,
    endpoint: str | None,
    asked: tuple[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A listing that is kept would hide what other processes commit."""
    told: list[tuple[str, dict[str, Any]]] = []
    made = SimpleNamespace(retries=None)

    def filesystem_of(scheme: str, **how: Any) -> SimpleNamespace:
        told.append((scheme, how))
        return made

    monkeypatch.setattr(fsspec, "filesystem", filesystem_of)
    Files(url, endpoint)
    scheme, options = asked
    assert told == [(scheme, {"use_listings_cache": False, "skip_instance_cache": True} | options)]
    assert made.retries == (3 if scheme == "s3" else None)


@pytest.mark.parametrize(
    "url", ["", "store", "/abs", "gs://bucket/x", "s3://", "file:///", "s3:///"]
)
def test_an_address_of_no_store_is_refused_with_those_that_are(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Files(url)
    assert str(caught.value) == (
        f"DYNOLAB_STORE = {url!r}: use file:///absolute/folder or s3://bucket/prefix"
    )


def test_a_relative_folder_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Files("file://relative/store")
    assert str(caught.value) == (
        "DYNOLAB_STORE = 'file://relative/store': a file:// store needs an absolute folder"
    )


def test_without_its_library_an_address_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(scheme: str, **how: Any) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(ConfigError) as caught:
        Files(URL)
    assert str(caught.value) == (
        f"DYNOLAB_STORE = {URL!r}: install what its kind needs: pip install 'dynolab[platform]' "
        "(Install s3fs to access S3)"
    )


def test_a_folder_is_one_however_it_is_written() -> None:
    assert Files("file:///a/./b/../store//").local("x") == Path("/a/store/x")


def test_objects_lie_under_bucket_and_prefix(files: Files, bucket: Bucket, tmp_path: Path) -> None:
    files.create("a/one", b"1")
    files.replace("a/b/two", b"22")
    (tmp_path / "source").write_bytes(b"333")
    entry = files.upload(tmp_path / "source", "three")
    assert (entry.size, entry.sha256) == (3, hashlib.sha256(b"333").hexdigest())
    assert bucket.objects == {
        "bucket/lab/a/one": b"1",
        "bucket/lab/a/b/two": b"22",
        "bucket/lab/three": b"333",
    }
    assert bucket.requests == [
        ("create", "bucket/lab/a/one"),
        ("overwrite", "bucket/lab/a/b/two"),
        ("put", "bucket/lab/three"),
    ]
    assert files.sizes("a") == {"one": 1, "b/two": 2}
    assert files.children("a") == ["b", "one"]
    assert files.children("nowhere") == [] and files.sizes("nowhere") == {}
    files.download("three", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"333"
    files.remove("three")
    files.remove("three")
    files.remove_folder("a")
    assert bucket.objects == {}


def test_no_more_is_read_than_a_small_file_may_have(
    files: Files, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "SMALL", 4)
    bucket.objects = {"bucket/lab/four": b"1234", "bucket/lab/five": b"12345"}
    assert files.read("four") == b"1234"
    assert bucket.requests[-1] == ("cat", "bucket/lab/four", "0", "5")
    with pytest.raises(CorruptData) as caught:
        files.read("five")
    assert str(caught.value) == "s3://bucket/lab/five is larger than 4 bytes"


def test_an_empty_object_is_read_without_a_range(files: Files, bucket: Bucket) -> None:
    bucket.objects["bucket/lab/empty"] = b""
    assert files.read("empty") == b""
    assert bucket.requests == [("size", "bucket/lab/empty")]


def test_an_object_is_created_once(files: Files, bucket: Bucket) -> None:
    files.create("marker", b"first")
    files.create("marker", b"first")  # its own, from a request that was repeated
    with pytest.raises(FileExistsError) as caught:
        files.create("marker", b"second")
    assert str(caught.value) == "s3://bucket/lab/marker"
    assert bucket.objects == {"bucket/lab/marker": b"first"}


@pytest.mark.parametrize("method", ["upload", "download"])
def test_a_transfer_that_fails_says_at_what_and_where(
    method: str, files: Files, bucket: Bucket, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"data")
    bucket.error = ValueError("no answer")
    with pytest.raises(StoreError) as caught:
        if method == "upload":
            files.upload(tmp_path / "file", "place")
        else:
            files.download("place", tmp_path / "file")
    doing = {"upload": "write", "download": "read"}[method]
    assert str(caught.value) == f"cannot {doing} {URL}/place: ValueError: no answer"
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_file_that_is_there_already_is_an_error_where_it_is_written(
    files: Files, bucket: Bucket
) -> None:
    bucket.error = FileExistsError("is there")
    with pytest.raises(StoreError) as caught:
        files.replace("place", b"")
    assert str(caught.value) == f"cannot write {URL}/place: is there"


def test_a_store_is_proved_by_one_object_that_is_taken_away_again(
    files: Files, bucket: Bucket
) -> None:
    files.check_writable()
    assert bucket.objects == {}
    assert [request[0] for request in bucket.requests if request[0] in ("create", "rm")] == [
        "create",
        "create",
        "rm",
    ]
    (probe,) = {request[1] for request in bucket.requests}
    UUID(probe.removeprefix("bucket/lab/probe-"))


def refusal(files: Files) -> str:
    with pytest.raises(ConfigError) as caught:
        files.check_writable()
    return str(caught.value)


def test_a_server_that_overwrites_is_refused(files: Files, bucket: Bucket) -> None:
    bucket.creates_once = False
    assert refusal(files) == (
        f"DYNOLAB_STORE = {URL!r}: its server overwrites instead of creating once"
    )


class NoCredentialsError(Exception):
    """Called as botocore calls it."""


@pytest.mark.parametrize("key", ["tester", None])
@pytest.mark.parametrize(
    "error", [PermissionError("Forbidden"), NoCredentialsError("Forbidden")], ids=type
)
def test_refused_credentials_say_which_to_set(
    error: Exception,
    key: str | None,
    files: Files,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    if key:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    bucket.error = error
    assert refusal(files) == (
        f"AWS_ACCESS_KEY_ID = {key!r}: the object store refuses these credentials: set "
        f"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to ones that may write {URL} (Forbidden)"
    )


def test_a_missing_bucket_is_named(files: Files, bucket: Bucket) -> None:
    bucket.error = FileNotFoundError("The specified bucket does not exist")
    assert refusal(files) == (
        f"DYNOLAB_STORE = {URL!r}: create the bucket 'bucket' or name one that exists "
        "(The specified bucket does not exist)"
    )


@pytest.mark.parametrize("endpoint", [ENDPOINT, None])
def test_a_server_that_does_not_answer_is_named(
    endpoint: str | None, files: Files, bucket: Bucket
) -> None:
    files.endpoint = endpoint
    bucket.error = TimeoutError("no answer")
    assert refusal(files) == (
        f"DYNOLAB_STORE_ENDPOINT = {endpoint!r}: start the object store there or correct the "
        "address (TimeoutError: no answer)"
    )


def test_what_lies_at_the_bottom_of_an_error_is_diagnosed(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(path: str, data: bytes) -> None:
        try:
            raise StoreError("cannot") from FileNotFoundError("no bucket")
        except StoreError as error:
            raise StoreError("cannot do it") from error

    monkeypatch.setattr(files, "create", create)
    assert refusal(files).endswith("create the bucket 'bucket' or name one that exists (no bucket)")

    def plain(path: str, data: bytes) -> None:
        raise StoreError("for no known reason")

    monkeypatch.setattr(files, "create", plain)
    assert refusal(files).endswith("(StoreError: for no known reason)")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    url = f"file://{tmp_path}/file/store"
    told = refusal(Files(url))
    assert told.startswith(
        f"DYNOLAB_STORE = {url!r}: name a folder that this user can write to (NotADirectoryError: "
    )
    assert told.endswith(")")


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
