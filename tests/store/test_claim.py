"""One contender at a time computes; the dead and the silent are succeeded."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from dynolab.store import Place
from dynolab.store.owner import this_process
from tests.store.results import json_bytes

DEADLINE_SECONDS = 20


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
    contender = place.claim()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not contender.try_acquire():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    contender.release()
