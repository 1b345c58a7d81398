"""Runs that a server believes at work when nobody works any more."""

from __future__ import annotations

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.states import Cancelling, Completed, Running, Scheduled, State

from flows.deploy import close_lost_runs


@pytest.mark.services
def test_runs_whose_process_is_gone_are_closed_and_cancelled_ones_are_not_crashed(
    prefect_server: None,
) -> None:
    @flow
    def lost() -> None:
        pass

    states: dict[str, State[None]] = {
        "Crashed": Running(),
        "Cancelled": Cancelling(),
        "Completed": Completed(),
        "Scheduled": Scheduled(),
    }
    with get_client(sync_client=True) as client:
        runs = {end: client.create_flow_run(lost, tags=["dynolab"]) for end in states}
        foreign = client.create_flow_run(lost, tags=["another"])
        for end, run in runs.items():
            client.set_flow_run_state(run.id, states[end], force=True)
        client.set_flow_run_state(foreign.id, Running(), force=True)
        close_lost_runs(client)
        for end, run in {**runs, "Running": foreign}.items():
            now = client.read_flow_run(run.id).state
            assert now is not None and now.name == end
