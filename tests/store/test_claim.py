"""One contender at a time computes: when a claim is renewed, is stale, and is taken over."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dynolab.errors import StoreError
from dynolab.store import Claim, Place, claim as claim_module
from dynolab.store.claim import this_process
from dynolab.store.filesystem import Files
from tests.flows.lab import until
from tests.store.results import json_bytes


def test_the_second_waits_for_the_release(place: Place) -> None:
    with place.claim() as first:
        assert first.try_acquire()
        with place.claim() as second:
            assert not second.try_acquire()
            assert str(os.getpid()) in second.holder()
        with place.claim() as third:
            assert not third.try_acquire()  # the second has left, and the claim is the first's
            first.release()
            assert third.try_acquire()
    assert place.claim().holder() == ""


@pytest.mark.skipif(sys.platform != "linux", reason="process identity is read from /proc")
@pytest.mark.parametrize("number", ["of an ended process", "taken by another process"])
def test_a_holder_that_died_on_this_machine_is_succeeded_at_once(number: str, place: Place) -> None:
    holder = this_process() | {"owner": "x", "started": "1"}
    if number == "of an ended process":
        with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
            holder["pid"] = child.pid
    place._files.create(f"{place.path}/CLAIM", json_bytes(holder))
    with place.claim() as contender:
        until(contender.try_acquire, 20)


US = f"process {os.getpid()} on {socket.gethostname()}"


def content(renewals: int) -> bytes:
    """The claim of a process on another machine, as it stands after so many renewals."""
    return json_bytes({"owner": "x", "host": "elsewhere", "pid": 17, "renewals": renewals})


class Clock:
    """Time that moves where somebody sleeps; each nap can have something happen."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.naps: list[float] = []
        self.during: Iterator[Callable[[], object]] = iter(())

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        assert len(self.naps) < 1000, "waits without end"
        self.now += seconds
        next(self.during, lambda: None)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which claims are stale."""
    clock = Clock()
    time = SimpleNamespace(monotonic=clock.monotonic, sleep=clock.sleep)
    monkeypatch.setattr(claim_module, "time", time)
    return clock


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(f"file://{tmp_path}/store")


@pytest.fixture
def claim(files: Files) -> Iterator[Claim]:
    with Claim(files, "CLAIM") as claim:
        yield claim


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_module, "RENEW_SECONDS", 0.005)


def renewers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "claim"]


def test_a_renewal_counts_up_and_keeps_the_owner_though_one_failed(
    files: Files,
    claim: Claim,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures, written = [StoreError("no answer")], list[bytes]()
    genuine = Files.replace

    def replace(self: Files, path: str, data: bytes) -> None:
        if failures:
            raise failures.pop()
        genuine(self, path, data)
        written.append(data)

    monkeypatch.setattr(Files, "replace", replace)
    assert claim.try_acquire()
    first = json.loads(files.read("CLAIM"))
    assert (first["host"], first["pid"]) == (socket.gethostname(), os.getpid())
    until(lambda: len(written) >= 2, 20)
    assert [json.loads(data) for data in written[:2]] == [
        first | {"renewals": renewals} for renewals in (2, 3)
    ]
    assert caplog.messages == ["the claim could not be renewed: no answer"]
    with Claim(files, "OTHER") as other:
        assert other.try_acquire()
        assert json.loads(files.read("OTHER"))["owner"] != first["owner"]


def test_a_claim_that_another_took_over_is_no_longer_renewed_nor_released(
    files: Files, claim: Claim, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert claim.try_acquire()
    # A renewal that is under way may write once more.
    until(lambda: files.replace("CLAIM", content(0)) or not renewers())
    assert files.read("CLAIM") == content(0)
    claim.release()
    assert files.read("CLAIM") == content(0)
    assert caplog.messages == ["another run took over the claim CLAIM"]


def test_a_release_without_the_store_leaves_a_claim_that_turns_stale(
    files: Files,
    claim: Claim,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def unreachable(self: Files, path: str) -> None:
        raise StoreError("no answer")

    assert claim.try_acquire()
    monkeypatch.setattr(Files, "remove", unreachable)
    for _ in range(2):  # the second time it has nothing more to release
        claim.release()
        assert caplog.messages == ["the claim could not be released: no answer"]
    assert files.children("") == ["CLAIM"] and renewers() == []


@pytest.mark.parametrize(
    ("held", "holder"),
    [
        (content(1), "process 17 on elsewhere"),
        (b'{"host": "elsewhere", "pid": 1}', "process 1 on elsewhere"),
        (b"not json", "a run"),
        (b"[1]", "a run"),
    ],
)
def test_a_claim_is_stale_after_a_minute_without_a_change_and_its_holder_is_named(
    held: bytes,
    holder: str,
    files: Files,
    claim: Claim,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    files.create("CLAIM", content(0))
    assert not claim.try_acquire()
    clock.now += 59.5
    assert not claim.try_acquire()
    files.replace("CLAIM", held)  # its holder lives
    for seconds in (0.5, 59.5):
        clock.now += seconds
        assert not claim.try_acquire() and files.read("CLAIM") == held
    clock.now += 0.5
    assert not claim.try_acquire() and files.children("") == []
    assert caplog.messages == [f"{holder} is no longer running: its claim is removed"]
    assert claim.try_acquire()


def test_a_holder_that_renews_is_named_at_its_next_renewal(
    files: Files, claim: Claim, clock: Clock
) -> None:
    files.create("CLAIM", content(7))
    clock.during = iter([lambda: None, lambda: files.replace("CLAIM", content(8))])
    assert claim.acquire_or_holder() == "process 17 on elsewhere"
    assert clock.naps == [0.5, 0.5]
    claim.release()
    assert files.read("CLAIM") == content(8)


def test_a_holder_that_falls_silent_is_succeeded_after_a_minute(
    files: Files, claim: Claim, clock: Clock
) -> None:
    files.create("CLAIM", content(3))
    assert claim.acquire_or_holder(poll_seconds=10.0) == ""
    assert clock.naps == [10.0] * 7  # the minute, and the look that finds it gone
    assert claim.holder() == US
    claim.release()
    with Claim(files, "CLAIM") as next_one:
        assert (next_one.acquire_or_holder(), len(clock.naps)) == ("", 7), "nobody holds it"


def test_a_claim_that_is_released_meanwhile_is_taken(
    files: Files, claim: Claim, clock: Clock
) -> None:
    files.create("CLAIM", content(3))
    clock.during = iter([lambda: files.remove("CLAIM")])
    assert (claim.acquire_or_holder(), clock.naps) == ("", [0.5])
