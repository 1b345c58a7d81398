"""Alerts: Prefect's own notifications send a message when a run ends, fails or waits."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import urlsplit

from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.notifications import CustomWebhookNotificationBlock, SlackWebhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger
from pydantic import SecretStr

from dynolab.errors import ConfigError
from flows.deployment.upkeep import register_automation

VARIABLE = "DYNOLAB_NOTIFY"
"""Environment variable with the address that alerts go to."""

AUTOMATION = "dynolab: alerts of runs that ended, failed or wait"

BLOCK = "dynolab-alerts"

ALERT_STATES = ("Completed", "Failed", "Crashed", "Cancelled", "Late", "Paused", "Suspended")
"""States of a run that send an alert. Late: it waits for a free worker."""


_BODY = (
    "{{ flow_run.state.message or ('It waits for a free worker.' if flow_run.state.name == 'Late' "
    "else 'Its page has a summary of what it found.') }}"
)


def alert_block(url: str) -> NotificationBlock:
    """What sends messages to an address: one of Apprise's, or a webhook, which gets JSON.

    **Raises** `ConfigError` for an address of neither kind.
    """
    from apprise import Apprise  # takes a while to import

    if Apprise.instantiate(url) is not None:  # Slack's webhooks, e-mail, and a hundred more
        return SlackWebhook(url=SecretStr(url))  # a block for any address of Apprise
    if _shown(url).startswith(("http://", "https://")):
        # The address often holds a secret: so it is a value that Prefect hides.
        return CustomWebhookNotificationBlock(
            name="Dynolab",
            url="{{address}}",
            json_data={"subject": "{{subject}}", "body": "{{body}}"},
            secrets={"address": url},
        )
    remedy = "give the address of a webhook (https://…) or one of Apprise, such as mailtos://…"
    raise ConfigError("--notify", _shown(url), remedy)


def check_alerts(url: str) -> None:
    """Sends a first message. **Raises** `ConfigError` if it does not arrive."""
    block = alert_block(url)
    try:
        with block.raise_on_failure():
            cast(Any, block).notify(
                "You will get a message here when a run ends, fails or waits.",
                subject="Dynolab is up",
            )
    except Exception as error:  # of several libraries; their texts may hold the address
        answer = getattr(error, "response", None)
        reason = f"it answers {answer.status_code}" if answer else type(error).__name__
        remedy = f"takes no message ({reason}); check the address, or leave it out"
        raise ConfigError("--notify", _shown(url), remedy) from error


def _shown(url: str) -> str:
    """Kind and host of an address, whose rest may be secret; empty if it has none."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:  # such as http://[ or a port that is no number
        return ""
    return f"{parts.scheme}://{parts.hostname}{port}/…" if parts.hostname else ""


def register_alerts(client: SyncPrefectClient, url: str | None) -> None:
    """Makes the server send alerts of all runs but the reconciler's; none without an address."""
    automation = None
    if url:
        automation = AutomationCore(
            name=AUTOMATION,
            description="Created by flows.deploy of Dynolab, for `dynolab up --notify`.",
            enabled=True,
            trigger=EventTrigger(
                type="event",
                match={"prefect.resource.id": "prefect.flow-run.*"},
                match_related={
                    "prefect.resource.role": "flow",
                    "prefect.resource.name": "!reconcile",
                },
                for_each={"prefect.resource.id"},
                expect={f"prefect.flow-run.{name}" for name in ALERT_STATES},
            ),
            actions=[
                SendNotification(
                    block_document_id=alert_block(url).save(BLOCK, overwrite=True),
                    subject="{{ flow_run.name }}: {{ flow_run.state.name }}",
                    body=f"{_BODY}\n{{{{ flow_run|ui_url }}}}",
                )
            ],
        )
    register_automation(client, AUTOMATION, automation)
