"""A resume state counts only where it bears this platform's signature; a result needs none."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from dynolab.store import Place, Store
from dynolab.store.commit import Signer, process_key
from dynolab.store.manifest import hash_bytes
from tests.store.results import (
    KEY,
    contents,
    json_bytes,
    manifest,
    newest,
    save_states,
    state_folder,
    write_files,
)

SECRET = secrets.token_bytes(32)
Open = Callable[[bytes], Place]


@pytest.fixture
def open_with(store_settings: dict[str, str | None], tmp_path: Path) -> Open:
    """Opens the store as a worker with a cache of its own that signs with this secret."""

    def opened(secret: bytes) -> Place:
        cache = tmp_path / "cache" / secrets.token_hex(4)
        return Store(cache=cache, key=lambda: secret, **store_settings).place("sft", KEY)

    return opened


@pytest.fixture
def place(open_with: Open) -> Place:
    return open_with(SECRET)


@pytest.fixture
def foreign(open_with: Open) -> Place:
    return open_with(secrets.token_bytes(32))


def test_only_the_key_that_signed_can_tell() -> None:
    signer, other = Signer(lambda: SECRET), Signer(lambda: secrets.token_bytes(32))
    signature = signer.sign(b"manifest")
    assert signer.signed(b"manifest", signature)
    assert not signer.signed(b"manifesto", signature)
    assert not signer.signed(b"manifest", None)
    assert not other.signed(b"manifest", signature)


def test_a_signature_is_an_hmac_for_this_purpose_alone() -> None:
    """Whatever moves it has every run begin from its first step."""
    expected = hmac.new(SECRET, b"dynolab resume state\0manifest", hashlib.sha256).hexdigest()
    assert Signer(lambda: SECRET).sign(b"manifest") == expected


def test_without_a_key_a_process_believes_its_own_states_alone(
    store_settings: dict[str, str | None], open_with: Open, tmp_path: Path
) -> None:
    assert len(process_key()) == 32 and process_key() == process_key()
    first, second = (
        Store(cache=tmp_path / "cache", **store_settings).place("sft", KEY) for _ in range(2)
    )
    save_states(first, tmp_path, 10)
    assert newest(second) == newest(open_with(process_key())) == 10
    assert newest(open_with(SECRET)) is None


def test_a_state_under_another_key_is_kept_and_passed_over_with_a_warning(
    place: Place, foreign: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_states(place, tmp_path, 10)
    assert newest(foreign) is None
    (message,) = caplog.messages
    assert message.endswith(
        f"/{state_folder(10)} counts as not committed: it is not signed with this worker's "
        "key; set the same DYNOLAB_KEY on all workers that share the store"
    )
    assert SECRET.hex() not in message
    assert newest(place) == 10


@pytest.mark.parametrize(
    ("marker_change", "manifest_change"),
    [
        ({"signature": secrets.token_hex(32)}, {}),
        ({"signature": None}, {}),
        ({}, {"step": 21}),
        ({}, {"version": 2}),
    ],
    ids=["signature", "no signature", "step", "version"],
)
def test_a_forged_state_is_passed_over(
    marker_change: dict[str, str | None],
    manifest_change: dict[str, int],
    place: Place,
    tmp_path: Path,
) -> None:
    save_states(place, tmp_path, 10, 20)
    marker_path = f"{state_folder(20)}/COMMITTED"
    marker = json.loads(place._files.read(marker_path)) | marker_change
    manifest_path = f"{state_folder(20)}/{marker['attempt']}/manifest.json"
    forged = json.loads(place._files.read(manifest_path)) | manifest_change
    content = json.dumps(forged, indent=2).encode()
    place._files.replace(manifest_path, content)
    marker["manifest_sha256"] = hash_bytes(content)
    place._files.replace(marker_path, json_bytes(marker))
    assert newest(place) == 10


def test_a_result_needs_no_signature(place: Place, foreign: Place, tmp_path: Path) -> None:
    source = write_files(tmp_path / "result", {"summary.json": b"{}"})
    made = place.commit(source, manifest())
    assert foreign.committed() == made


def test_the_secret_is_in_no_file_of_the_store(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    place = Store(url, cache=tmp_path / "cache", key=lambda: SECRET).place("sft", KEY)
    save_states(place, tmp_path, 10)
    stored = contents(tmp_path / "store")
    assert stored
    for content in stored.values():
        assert SECRET not in content and SECRET.hex().encode() not in content
