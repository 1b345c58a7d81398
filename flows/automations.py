"""What a Prefect server does by itself once it is told: flow runs that vanished are crashed."""

from __future__ import annotations

from datetime import timedelta

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

HEARTBEATS = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "60"}
"""Variables with which a flow run says every minute that it lives."""

SILENCE = timedelta(minutes=10)
"""How long a flow run may say nothing: several heartbeats, and a restart of the server."""

NAME = "dynolab: flow runs that fell silent have crashed"


def register_automations(client: SyncPrefectClient, silence: timedelta = SILENCE) -> None:
    """Make the server crash flow runs whose machine vanished with the worker that would say so."""
    automation = crash_silent_runs(silence)
    known = client.read_automations_by_name(NAME)
    for one in known[1:]:
        client.delete_automation(one.id)
    if known:
        client.update_automation(known[0].id, automation)
    else:
        client.create_automation(automation)


def crash_silent_runs(silence: timedelta) -> AutomationCore:
    """After a heartbeat another event of the flow run is expected, its end at the latest.

    Any event will do: the end of a run is named by its state, and states may have any name.
    """
    crash = ChangeFlowRunState(
        type="change-flow-run-state",
        state=StateType.CRASHED,
        message=f"Its process gave no sign of life for {silence}; run it again.",
    )
    return AutomationCore(
        name=NAME,
        description="Created by the registration of Dynolab's deployments.",
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
        actions=[crash],
    )
