"""What dead processes left is set right, and what lives is let be."""

from __future__ import annotations

import json
import signal

import pytest
from doubles import sleeper

from dynolab.store.claim import this_process
from tasks.runtime.cleanup import reap_orphans
from tasks.runtime.launch.launcher import OWNER_VARIABLE

DEAD = this_process() | {"started": "1"}  # the pid has been given to another process since


def test_what_a_dead_supervisor_owns_is_killed() -> None:
    with sleeper(**{OWNER_VARIABLE: json.dumps(DEAD)}) as orphan:
        assert orphan.pid in reap_orphans()
        assert orphan.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize(
    "owner",
    [
        json.dumps(this_process()),
        json.dumps(DEAD | {"machine": "another boot"}),
        json.dumps(DEAD | {"pid": 2**31}),
        json.dumps([1]),
        "{",
        "[" * 100_000,
        "",
    ],
    ids=["living", "another boot", "no process", "a list", "torn", "deep", "empty"],
)
def test_what_a_living_supervisor_or_another_machine_owns_is_let_be(owner: str) -> None:
    with sleeper(**{OWNER_VARIABLE: owner}) as process:
        assert process.pid not in reap_orphans()
        assert process.poll() is None
