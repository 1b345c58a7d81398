"""What is healed by the clock: flow runs that go on after their end, and those that fell silent."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from doubles import sleeper
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import TERMINAL_STATES, StateType
from prefect.states import Cancelled, Completed, Crashed, Failed, Running, State

from dynolab.errors import ConfigError
from flows.deploy import AUTOMATION, register_automations
from flows.reconcile import FLOW, clean_up, delete_completed_runs
from tasks.runtime.cleanup import FLOW_RUN_VARIABLE, end_overdue, flow_runs_over
from tasks.runtime.system.processes import free_port
from tasks.runtime.system.settings import Settings

pytestmark = pytest.mark.services


@flow
def some_flow() -> None:
    pass


@pytest.fixture
def client(prefect_server: None) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as connected:
        yield connected


def run_in(client: SyncPrefectClient, state: State[None]) -> str:
    run = client.create_flow_run(some_flow)
    client.set_flow_run_state(run.id, state, force=True)
    return str(run.id)


def test_a_flow_run_is_over_for_a_while_or_not_at_all(client: SyncPrefectClient) -> None:
    ended, at_work = run_in(client, Completed()), run_in(client, Running())
    none = timedelta(0)
    asked = [ended, at_work, "no id", "00000000-0000-0000-0000-000000000000"]
    assert flow_runs_over(client, asked, TERMINAL_STATES, none) == {ended}
    assert flow_runs_over(client, asked, {StateType.FAILED}, none) == set()
    assert flow_runs_over(client, asked, TERMINAL_STATES) == set()


def test_only_processes_of_flow_runs_that_ended_are_killed(client: SyncPrefectClient) -> None:
    ended = [run_in(client, state) for state in (Cancelled(), Completed(), Failed())]
    others = [run_in(client, state) for state in (Running(), Crashed())]
    unknown = ["00000000-0000-0000-0000-000000000000", "no id"]
    with ExitStack() as sleepers:
        started = {
            run: sleepers.enter_context(sleeper(**{FLOW_RUN_VARIABLE: run}))
            for run in [*ended, *others, *unknown]
        }
        assert not end_overdue(client) & set(ended)
        assert end_overdue(client, timedelta(0)) & set(started) == set(ended)
        assert {started[run].wait(10) for run in ended} == {-signal.SIGKILL}
        assert {started[run].poll() for run in [*others, *unknown]} == {None}


def test_only_its_own_completed_runs_leave_the_list(client: SyncPrefectClient) -> None:
    of_others = run_in(client, Completed())
    own = {
        str(client.create_flow_run(flow(name=FLOW)(some_flow.fn), state=state).id): state.type
        for state in (Completed(), Failed())
    }
    delete_completed_runs(client)
    left = {str(run.id) for run in client.read_flow_runs()}
    assert of_others in left
    assert {own[run] for run in own.keys() & left} == {StateType.FAILED}


def test_a_server_that_is_away_is_named(client: SyncPrefectClient, tmp_path: Path) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    settings = Settings(home=tmp_path, store=f"file://{tmp_path}/store", mlflow_tracking_uri=away)
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_URI"):
        clean_up(settings, client)
    alone = settings.model_copy(update={"mlflow_tracking_uri": None})
    assert clean_up(alone, client).keys() == {"reaped", "ended"}
    with sleeper(**{FLOW_RUN_VARIABLE: run_in(client, Running())}) as marked:
        with (
            SyncPrefectClient(api=f"{away}/api") as nobody,
            pytest.raises(ConfigError, match="PREFECT_API_URL"),
        ):
            clean_up(alone, nobody)
        assert marked.poll() is None


def test_silence_is_watched_once_however_often_it_is_registered(client: SyncPrefectClient) -> None:
    for minutes in (20, 15):
        register_automations(client, timedelta(minutes=minutes))
    (known,) = client.read_automations_by_name(AUTOMATION)
    assert known.enabled
    trigger, (action,) = known.trigger, known.actions
    assert (trigger.within, trigger.after, trigger.for_each) == (
        timedelta(minutes=15),
        {"prefect.flow-run.heartbeat"},
        {"prefect.resource.id"},
    )
    assert (action.type, action.state) == ("change-flow-run-state", StateType.CRASHED)
