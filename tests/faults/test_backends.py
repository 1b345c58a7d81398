"""What the servers stand on is killed under a training, and a run dies while it commits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tasks.runtime.cleanup import FLOW_RUN_VARIABLE
from tasks.runtime.servers.postgres_redis import missing_programs
from tasks.runtime.system.processes import kill_marked
from tests.faults.backed import STAGES, Backed, backed
from tests.faults.conftest import LATER
from tests.faults.points import dead
from tests.faults.records import Record, tell
from tests.flows.lab import Lab, until

MISSING = missing_programs()

pytestmark = [
    pytest.mark.faults,
    pytest.mark.ranks,
    pytest.mark.services,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: apt-get install {' '.join(MISSING)}"),
]


@pytest.fixture(scope="module")
def shared_full(undisturbed: Lab) -> Iterator[Backed]:
    with backed(undisturbed, LATER) as running:
        yield running


@pytest.fixture
def full(shared_full: Backed) -> Backed:
    """The full profile with all results up to the finetuned model, and nothing at work."""
    files = shared_full.lab.files
    if files.exists(f"{STAGES}/preference"):
        files.rm(f"{STAGES}/preference", recursive=True)
    shared_full.let_go()
    shared_full.platform.clear()
    return shared_full


@pytest.mark.parametrize("name", ["redis", "postgres", "s3"])
def test_a_restart_below_the_servers_costs_nothing(
    name: str, full: Backed, undisturbed: Lab, record_property: Record
) -> None:
    platform, project = full.platform, f"{name} restarted"
    run = platform.start(project)
    rank = full.lab.pause_preference()
    full.restart(name)
    os.kill(rank, signal.SIGCONT)
    assert platform.end(run) == "Completed"
    identical = full.lab.hashes("preference") == undisturbed.hashes("preference")
    again = platform.start(project)
    assert platform.end(again) == "Completed"
    tell(
        record_property,
        f"{name} killed and started again between two resume states",
        left=platform.left_behind(),
        metrics_lost=platform.metrics_lost(project, undisturbed),
        resume_identical=identical,
    )


@pytest.mark.parametrize("file", ["model.safetensors", "COMMITTED"])
def test_a_run_that_dies_while_it_commits_has_committed_nothing(
    file: str, full: Backed, undisturbed: Lab, record_property: Record
) -> None:
    platform, project = full.platform, f"died at {file}"
    full.hold(rf"(PUT|POST) /{STAGES}/preference/[0-9a-f]+/(?!resume/)\S*{file}")
    run = platform.start(project)
    until(full.held)
    rank_is_gone = not full.lab.ranks()
    kill_marked(f"{FLOW_RUN_VARIABLE}={run}")
    full.let_go()
    assert platform.end(run) == "Crashed"
    dead(platform)
    assert rank_is_gone and full.lab.markers("preference/*") == []
    assert platform.end(platform.start(project)) == "Completed"
    identical = full.lab.hashes("preference") == undisturbed.hashes("preference")
    tell(
        record_property,
        f"engine killed while {file} of the result is written",
        left=platform.left_behind(),
        metrics_lost=platform.metrics_lost(project, undisturbed),
        resume_identical=identical,
    )
