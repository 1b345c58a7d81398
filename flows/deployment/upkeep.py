"""What the server keeps in order of runs: lost, late and completed ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import DeploymentSchedule, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.states import Cancelled, Crashed, State

SILENCE = timedelta(minutes=10)
"""How long a flow run may send no event: several heartbeats, and a restart of the server."""

AUTOMATION = "dynolab: flow runs that fell silent have crashed"

TAG = "dynolab"


def schedule_name(schedule: DeploymentSchedule) -> str:
    """A schedule's name: its slug; one made in the browser gets it from its id."""
    return schedule.slug or f"schedule-{str(schedule.id)[:8]}"


def delete_completed_runs(client: SyncPrefectClient) -> None:
    """Delete this flow's completed runs, which would fill the list that users find theirs in."""
    for run in client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=["reconcile"])),
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.COMPLETED]))
        ),
        limit=200,
    ):
        client.delete_flow_run(run.id)


def close_lost_runs(client: SyncPrefectClient) -> None:
    """Closes runs that the server lists as running while no worker runs: their process is gone."""
    running = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
    lost = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[TAG]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=running)),
    )
    for run in client.read_flow_runs(flow_run_filter=lost, limit=200):
        ended: State[None] = (
            Cancelled()
            if run.state is not None and run.state.is_cancelling()
            else Crashed(message="The process that ran it has ended; run it again.")
        )
        client.set_flow_run_state(run.id, ended, force=True)


def keep_one_late_run(client: SyncPrefectClient) -> list[str]:
    """Deletes all but the newest of each schedule's runs that came due and that no worker began.

    Returns a line for each schedule that has one.
    """
    lines = []
    due = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[TAG, "auto-scheduled"]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
        next_scheduled_start_time=FlowRunFilterNextScheduledStartTime(before_=datetime.now(UTC)),
    )
    seen = {"reconcile"}
    order = FlowRunSort.EXPECTED_START_TIME_DESC
    for run in client.read_flow_runs(flow_run_filter=due, sort=order, limit=200):
        name = run.created_by.display_value if run.created_by else ""
        if name in seen:
            client.delete_flow_run(run.id)
        elif run.expected_start_time and name:
            time = run.expected_start_time.astimezone()
            lines.append(f"missed  {name}, due at {time:%Y-%m-%d %H:%M}; starts now, once")
            seen.add(name)
    return lines


def crash_silent_runs(client: SyncPrefectClient, silence: timedelta = SILENCE) -> None:
    """Makes the server crash flow runs without an event for `silence` after a heartbeat.

    Their machine and worker are gone. Any event counts, because the event at the end of a run has
    its state's name, which is free.
    """
    automation = AutomationCore(
        name=AUTOMATION,
        description="Created by flows.deploy of Dynolab.",
        enabled=True,
        trigger=EventTrigger(
            type="event",
            posture=Posture.Proactive,
            match={"prefect.resource.id": "prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.*"},
            threshold=1,
            within=silence,
        ),
        actions=[
            ChangeFlowRunState(
                type="change-flow-run-state",
                state=StateType.CRASHED,
                message=f"Its process sent no event for {silence}; run it again.",
            )
        ],
    )
    register_automation(client, AUTOMATION, automation)


def register_automation(
    client: SyncPrefectClient, name: str, automation: AutomationCore | None
) -> None:
    """Makes an automation, or replaces the one of its name; None: there is none of this name."""
    existing = client.read_automations_by_name(name)
    for other in existing[1:] if automation else existing:
        client.delete_automation(other.id)
    if automation and existing:
        client.update_automation(existing[0].id, automation)
    elif automation:
        client.create_automation(automation)
