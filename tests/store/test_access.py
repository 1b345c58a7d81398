"""What stands between a user and a store is told once: field, value, remedy."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dynolab.errors import ConfigError
from dynolab.store import Store


def refusal(store: Store) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        store.check_writable()
    print(caught.value)
    return caught.value


def test_a_good_store_passes_and_keeps_nothing_of_the_probe(store: Store) -> None:
    store.check_writable()
    assert not store.files.sizes("")


@pytest.mark.parametrize("url", ["", "store", "/abs", "gs://bucket/x", "file://relative", "s3://"])
def test_urls_that_are_none(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"DYNOLAB_STORE = .*(use|absolute)") as caught:
        Store(url, cache=tmp_path)
    assert caught.value.value == url


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    url = f"file://{tmp_path}/file/store"
    told = refusal(Store(url, cache=tmp_path / "cache"))
    assert (told.field, told.value) == ("DYNOLAB_STORE", url)
    assert "a folder that this user can write to" in told.remedy


@pytest.mark.services
def test_a_missing_bucket(s3_server: str, aws_environment: None, tmp_path: Path) -> None:
    told = refusal(Store("s3://no-such-bucket/lab", cache=tmp_path, endpoint=s3_server))
    assert (told.field, told.value) == ("DYNOLAB_STORE", "s3://no-such-bucket/lab")
    assert "create the bucket 'no-such-bucket'" in told.remedy


@pytest.mark.services
def test_wrong_credentials(strict_s3_server: str, aws_environment: None, tmp_path: Path) -> None:
    told = refusal(Store("s3://bucket/lab", cache=tmp_path, endpoint=strict_s3_server))
    assert (told.field, told.value) == ("AWS_ACCESS_KEY_ID", "tester")
    assert "AWS_SECRET_ACCESS_KEY" in told.remedy
    assert "secret" not in str(told)


@pytest.mark.services
def test_no_credentials(
    s3_server: str, aws_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    told = refusal(Store("s3://bucket/lab", cache=tmp_path, endpoint=s3_server))
    assert (told.field, told.value) == ("AWS_ACCESS_KEY_ID", None)


def test_nobody_at_the_endpoint(
    aws_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with socket.socket() as held:  # bound but not listening: connections are refused
        held.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{held.getsockname()[1]}"
        told = refusal(Store("s3://bucket/lab", cache=tmp_path, endpoint=endpoint))
    assert (told.field, told.value) == ("DYNOLAB_STORE_ENDPOINT", endpoint)


def test_the_store_needs_neither_torch_nor_a_service() -> None:
    program = (
        "import sys, dynolab.store, tasks.runtime.stage, tasks.runtime.system.settings;"
        "heavy = {'torch', 'transformers', 'mlflow', 'prefect', 's3fs', 'deepspeed'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_name_that_vanishes_after_the_refusal_was_still_taken(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.files.create("claimed", b"one")
    monkeypatch.setattr(type(store.files), "_existing", lambda *_: None)
    with pytest.raises(FileExistsError):
        store.files.create("claimed", b"two")


def test_creating_the_same_content_again_is_the_same_creation(store: Store) -> None:
    store.files.create("marker", b"unique")
    store.files.create("marker", b"unique")
    assert store.files.read("marker") == b"unique"
