"""What dead processes left is set right, and what lives is let be."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from doubles import sleeper
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelling, Completed, Failed, Running, Scheduled, State

from dynolab.store.claim import this_process
from flows.deployment.upkeep import close_lost_runs, delete_completed_runs
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


@flow
def some_flow() -> None:
    pass


@pytest.fixture
def client(prefect_server: None) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as connected:
        yield connected


def test_runs_whose_process_is_gone_are_closed_and_cancelled_ones_are_not_crashed(
    client: SyncPrefectClient,
) -> None:
    states: dict[str, State[None]] = {
        "Crashed": Running(),
        "Cancelled": Cancelling(),
        "Completed": Completed(),
        "Scheduled": Scheduled(),
    }
    runs = {end: client.create_flow_run(some_flow, tags=["dynolab"]) for end in states}
    foreign = client.create_flow_run(some_flow, tags=["another"])
    for end, run in runs.items():
        client.set_flow_run_state(run.id, states[end], force=True)
    client.set_flow_run_state(foreign.id, Running(), force=True)
    close_lost_runs(client)
    for end, run in {**runs, "Running": foreign}.items():
        now = client.read_flow_run(run.id).state
        assert now is not None and now.name == end


def test_only_its_own_completed_runs_leave_the_list(client: SyncPrefectClient) -> None:
    foreign = client.create_flow_run(some_flow, state=Completed())
    own = {
        client.create_flow_run(flow(name="reconcile")(some_flow.fn), state=state).id: state.type
        for state in (Completed(), Failed())
    }
    delete_completed_runs(client)
    left = {run.id for run in client.read_flow_runs()}
    assert foreign.id in left
    assert {own[run] for run in own.keys() & left} == {StateType.FAILED}
