"""One contender at a time computes; the dead and the silent are succeeded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from dynolab.store import Claim, Place, Store, claim as claim_module, owner as owner_module

DEADLINE_SECONDS = 20


@pytest.fixture
def place(store: Store) -> Place:
    return store.place("dpo", "34" * 32)


@pytest.fixture
def path(place: Place) -> str:
    return f"{place.path}/CLAIM"


def acquired_in_time(claim: Claim) -> bool:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if claim.try_acquire():
            return True
        time.sleep(0.05)
    return False


def test_the_second_waits_for_the_release(place: Place) -> None:
    with place.claim() as first, place.claim() as second:
        assert first.try_acquire()
        assert not second.try_acquire()
        assert str(os.getpid()) in second.holder()
        first.release()
        assert second.try_acquire()
    assert place.claim().holder() == ""


def test_a_loser_that_gives_up_leaves_the_claim(place: Place) -> None:
    with place.claim() as first:
        assert first.try_acquire()
        with place.claim() as second:
            assert not second.try_acquire()
        with place.claim() as third:
            assert not third.try_acquire()


def test_a_renewed_claim_outlives_the_stale_time(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_module, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(claim_module, "STALE_SECONDS", 3.0)
    with place.claim() as first, place.claim() as second:
        assert first.try_acquire()
        until = time.monotonic() + 4.0
        while time.monotonic() < until:
            assert not second.try_acquire()
            time.sleep(0.1)


@pytest.mark.parametrize("content", [b"not json", b"[1]", b'{"host": "elsewhere", "pid": 1}'])
def test_a_silent_claim_turns_stale(
    content: bytes, store: Store, place: Place, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.files.create(path, content)
    contender = place.claim()
    assert not contender.try_acquire()
    assert not contender.try_acquire()
    monkeypatch.setattr(claim_module, "STALE_SECONDS", 0.2)
    assert acquired_in_time(contender)
    contender.release()


@pytest.mark.skipif(sys.platform != "linux", reason="process identity is read from /proc")
def test_a_holder_that_died_on_this_machine_is_succeeded_at_once(
    store: Store, place: Place, path: str
) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    told = {"owner": "x", "machine": owner_module._machine(), "pid": child.pid, "started": "1"}
    store.files.create(path, json.dumps(told).encode())
    contender = place.claim()
    assert acquired_in_time(contender)
    contender.release()


@pytest.mark.skipif(sys.platform != "linux", reason="process identity is read from /proc")
def test_a_reused_process_number_is_not_its_holder(store: Store, place: Place, path: str) -> None:
    told = {"owner": "x", "machine": owner_module._machine(), "pid": os.getpid(), "started": "1"}
    store.files.create(path, json.dumps(told).encode())
    contender = place.claim()
    assert acquired_in_time(contender)
    contender.release()


def test_a_claim_that_was_taken_over_is_not_released(store: Store, place: Place, path: str) -> None:
    first = place.claim()
    assert first.try_acquire()
    store.files.replace(path, b'{"owner": "another"}')
    first.release()
    assert b"another" in store.files.read(path)
