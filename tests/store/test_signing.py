"""A resume state counts only where it bears this platform's signature; a result needs none."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dynolab.store import Manifest, Place, Store
from dynolab.store.manifest import hash_bytes
from dynolab.store.signing import Signer, process_key

KEY = "78" * 32
SECRET = secrets.token_bytes(32)


@pytest.fixture
def place(store_settings: dict[str, Any], tmp_path: Path) -> Place:
    return opened(store_settings, tmp_path, SECRET)


def opened(settings: dict[str, Any], tmp_path: Path, secret: bytes) -> Place:
    store = Store(cache=tmp_path / "cache", key=lambda: secret, **settings)
    return store.place("sft", KEY)


def save(place: Place, step: int, tmp_path: Path, content: bytes = b"weights") -> None:
    source = tmp_path / f"source-{uuid4().hex}"
    source.mkdir()
    (source / "shard-0.safetensors").write_bytes(content)
    place.commit_resume(step, source, Manifest(stage="sft", key=KEY, version=1))


def newest(place: Place) -> int | None:
    found = place.newest_resume()
    return found[0] if found else None


def marker(step: int) -> str:
    return f"stages/sft/{KEY}/resume/step-{step:08d}/COMMITTED"


def test_only_the_key_that_signed_can_tell(place: Place) -> None:
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


def test_without_a_key_a_process_believes_its_own_states_alone(tmp_path: Path) -> None:
    assert len(process_key()) == 32 and process_key() == process_key()
    url = f"file://{tmp_path}/store"
    place = Store(url, cache=tmp_path / "cache").place("sft", KEY)
    save(place, 10, tmp_path)
    assert newest(Store(url, cache=tmp_path / "cache").place("sft", KEY)) == 10
    assert newest(opened({"url": url}, tmp_path, process_key())) == 10
    assert newest(opened({"url": url}, tmp_path, SECRET)) is None


def test_workers_that_share_the_key_share_states(
    place: Place, store_settings: dict[str, Any], tmp_path: Path
) -> None:
    save(place, 10, tmp_path)
    assert newest(opened(store_settings, tmp_path / "elsewhere", SECRET)) == 10


def test_a_state_under_another_key_is_passed_over_told_and_kept(
    place: Place,
    store_settings: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    save(place, 10, tmp_path)
    foreign = opened(store_settings, tmp_path / "elsewhere", secrets.token_bytes(32))
    assert newest(foreign) is None
    (told,) = caplog.messages
    assert told.endswith(
        f"/stages/sft/{KEY}/resume/step-00000010 counts as not committed: it is not signed with "
        "the key of this worker; where workers share a store, give all of them the same DYNOLAB_KEY"
    )
    assert SECRET.hex() not in told
    assert newest(place) == 10


def test_a_run_under_another_key_keeps_states_of_its_own(
    place: Place, store_settings: dict[str, Any], tmp_path: Path
) -> None:
    save(place, 30, tmp_path)
    save(place, 40, tmp_path)
    foreign = opened(store_settings, tmp_path / "elsewhere", secrets.token_bytes(32))
    for step in (10, 20, 30):
        save(foreign, step, tmp_path)
        assert newest(foreign) == step
    assert newest(place) == 40


@pytest.mark.parametrize("change", ["signature", "no signature", "step", "stage"])
def test_a_forged_state_is_passed_over(
    change: str, place: Place, store_settings: dict[str, Any], tmp_path: Path
) -> None:
    save(place, 10, tmp_path)
    save(place, 20, tmp_path)
    files = Store(cache=tmp_path / "cache", **store_settings).files
    told = json.loads(files.read(marker(20)))
    folder = f"{marker(20).rpartition('/')[0]}/{told['attempt']}"
    manifest = json.loads(files.read(f"{folder}/manifest.json"))
    if change == "signature":
        told["signature"] = secrets.token_hex(32)
    elif change == "no signature":
        del told["signature"]
    elif change == "step":
        manifest["step"] = 21
    else:
        manifest["version"] = 2
    content = json.dumps(manifest, indent=2).encode()
    files.replace(f"{folder}/manifest.json", content)
    told["manifest_sha256"] = hash_bytes(content)
    files.replace(marker(20), json.dumps(told).encode())
    assert newest(place) == 10


def test_an_older_state_cannot_pose_as_a_newer_one(
    place: Place, tmp_path: Path, store_settings: dict[str, Any]
) -> None:
    save(place, 10, tmp_path)
    save(place, 20, tmp_path)
    files = Store(cache=tmp_path / "cache", **store_settings).files
    for name in files.sizes(f"stages/sft/{KEY}/resume/step-{10:08d}"):
        content = files.read(f"stages/sft/{KEY}/resume/step-{10:08d}/{name}")
        files.replace(f"stages/sft/{KEY}/resume/step-{90:08d}/{name}", content)
    assert newest(place) == 20


def test_a_result_needs_no_signature(
    place: Place, store_settings: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "result").mkdir()
    (tmp_path / "result/summary.json").write_text("{}")
    made = place.commit(tmp_path / "result", Manifest(stage="sft", key=KEY, version=1))
    foreign = opened(store_settings, tmp_path / "elsewhere", secrets.token_bytes(32))
    assert foreign.committed() == made


def test_the_secret_is_in_no_file_of_the_store(tmp_path: Path) -> None:
    place = opened({"url": f"file://{tmp_path}/store"}, tmp_path, SECRET)
    save(place, 10, tmp_path)
    found = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert found
    for path in found:
        content = path.read_bytes()
        assert SECRET not in content and SECRET.hex().encode() not in content
    shutil.rmtree(tmp_path / "store")
