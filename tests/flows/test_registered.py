"""What a Prefect server knows after registration, and what stays of people's own choices."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolUpdate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_CUSTOM_HEADERS,
    temporary_settings,
)
from prefect.states import Failed

from dynolab.errors import ConfigError
from flows.deployment import alerts, checks, register
from flows.deployment.alerts import check_alerts, register_alerts
from flows.deployment.upkeep import keep_one_late_run
from flows.parameters.parse import STUDIES
from flows.schedule import change_schedules
from flows.up import use_platform
from tasks.runtime.servers.form_checks import SOCKET
from tasks.runtime.servers.services import Services
from tests.faults.records import Record
from tests.flows.lab import SMALL, until
from tests.flows.test_parameters import BAD_FORMS

pytestmark = pytest.mark.services


def settings_of(servers: dict[str, str]) -> dict[Any, Any]:
    """Prefect's settings that lead to the servers and log in there."""
    return {
        PREFECT_API_URL: servers["PREFECT_API_URL"],
        PREFECT_CLIENT_CUSTOM_HEADERS: json.loads(servers["PREFECT_CLIENT_CUSTOM_HEADERS"]),
    }


@pytest.fixture(scope="module")
def client(servers: dict[str, str]) -> Iterator[SyncPrefectClient]:
    """A server that everything is registered with once."""
    with temporary_settings(settings_of(servers)), get_client(sync_client=True) as client:
        register.main()
        yield client


def test_what_people_chose_in_prefect_outlives_the_next_registration(
    client: SyncPrefectClient,
) -> None:
    one = client.read_deployment_by_name("study/a-study")
    early = CronSchedule(cron="0 5 * * *", timezone="Europe/Amsterdam")
    form = {register.PARAMETER: {"steps": 10}}
    made = DeploymentScheduleCreate(schedule=early, parameters=form)
    (first,) = client.create_deployment_schedules(one.id, [made])
    client.update_deployment_schedule(one.id, first.id, active=False)  # as pausing does
    client.update_work_pool("training", WorkPoolUpdate(concurrency_limit=3))
    for _ in range(2):
        register.main()
        (kept,) = client.read_deployment_by_name("study/a-study").schedules
        assert kept.schedule == early and not kept.active and kept.parameters == form
        assert client.read_work_pool("training").concurrency_limit == 3
    client.delete_deployment_schedule(one.id, kept.id)
    assert client.read_deployment_by_name("study/a-study").id == one.id


def test_what_people_start_most_is_listed_first_and_former_names_go(
    client: SyncPrefectClient,
) -> None:
    flow = client.create_flow_from_name("sweep")
    client.create_deployment(flow, "former", entrypoint="flows.deploy.sweep", tags=[register.TAG])
    client.create_deployment(flow, "their own", entrypoint="theirs.py:sweep", tags=[register.TAG])
    register.main()
    by_name = {one.name: one for one in client.read_deployments()}
    assert sorted(by_name)[:3] == ["a-study", "a-sweep", "all-remedies"]
    assert "their own" in by_name and "former" not in by_name
    assert by_name["all-remedies"].tags == [register.TAG, "compare"]


DAILY = "0 4 * * *"
SWEEP = STUDIES / "sweep_beta.yaml"


@pytest.fixture
def own_server(
    client: SyncPrefectClient, servers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> SyncPrefectClient:
    monkeypatch.setenv("PREFECT_API_URL", servers["PREFECT_API_URL"])
    return client


def schedule(
    file: Path | None = None,
    cron: str | None = None,
    name: str | None = None,
    changes: Sequence[str] = (),
    **switched: str,
) -> dict[str, dict[str, Any]]:
    """What `dynolab schedule` shows, by name."""
    kinds: dict[bool | None, str | None] = {
        {"resume": True, "pause": False, "remove": None}[kind]: of for kind, of in switched.items()
    }
    return {row["name"]: row for row in change_schedules((file, cron, name, changes), kinds)}


def test_a_shipped_schedule_is_switched_on_and_what_people_chose_of_it_stays(
    own_server: SyncPrefectClient,
) -> None:
    assert not schedule()["nightly-beta"]["active"]
    assert schedule(resume="nightly-beta")["nightly-beta"]["next run"]
    register.main()
    assert schedule()["nightly-beta"]["active"]
    assert "nightly-beta" not in schedule(remove="nightly-beta")
    register.main()
    assert "nightly-beta" not in schedule(), "it is not made again"


def test_a_study_file_is_scheduled_paused_and_removed(
    own_server: SyncPrefectClient, tmp_path: Path
) -> None:
    made = schedule(SWEEP, DAILY, None, ["trials=2"])["beta"]
    assert (made["deployment"], made["active"], made["last run"]) == ("a-sweep", True, "")
    register.main()
    own = tmp_path / "mine.yaml"
    own.write_text(SMALL.read_text() + "contrasts: []\n")
    assert schedule(own, DAILY, "own")["own"]["deployment"] == "a-study"
    assert not schedule(pause="beta")["beta"]["active"]
    (one,) = own_server.read_deployment_by_name("sweep/a-sweep").schedules
    asked = {"study_file": SWEEP.name, "other_settings": ["trials=2"]}
    assert one.parameters == {register.PARAMETER: asked}
    own.unlink()
    assert "own" in schedule() and not schedule(remove="own").keys() & {"own"}
    schedule(remove="beta")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ((SWEEP, "0 0 30 2 *"), "--cron"),  # no such day
        ((SWEEP, "at night"), "--cron"),
        ((SWEEP, None), "--cron"),
        ((STUDIES / "gone.yaml", DAILY), "config"),
        ((SWEEP, DAILY, None, ["metric="]), "metric"),
    ],
)
def test_a_schedule_that_cannot_work_is_not_made(
    given: tuple[Any, ...], field: str, own_server: SyncPrefectClient
) -> None:
    with pytest.raises(ConfigError, match=f"^{field} = "):
        schedule(*given)
    assert "beta" not in schedule()


def test_without_a_platform_no_schedule_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("DYNOLAB_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="no platform runs"):
        use_platform()


def test_what_waits_has_the_name_that_it_will_run_under(own_server: SyncPrefectClient) -> None:
    deployment = own_server.read_deployment_by_name("sweep/a-sweep")
    schedule(SWEEP, DAILY)
    own_server._client.post(f"/deployments/{deployment.id}/schedule", json={}).raise_for_status()
    of_it = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment.id]))
    waiting = own_server.read_flow_runs(flow_run_filter=of_it)
    assert waiting and all(run.name.startswith("sweep_beta (") for run in waiting)
    form = {register.PARAMETER: {"name": "night"}}
    run = own_server.create_flow_run_from_deployment(
        deployment.id, name="Tasty-Sphynx", parameters=form
    )
    assert own_server.read_flow_run(run.id).name == "night"
    schedule(remove="beta")


class Webhook(BaseHTTPRequestHandler):
    """Takes messages, unless its address says otherwise."""

    messages: ClassVar[list[dict[str, str]]] = []

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(404 if self.path == "/gone" else 200)
        self.end_headers()
        self.messages.append(json.loads(text))


@pytest.fixture
def webhook() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Webhook) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_run_that_fails_is_told_within_ten_seconds(
    own_server: SyncPrefectClient, webhook: str, record_property: Record
) -> None:
    check_alerts(webhook)
    assert Webhook.messages.pop()["subject"] == "Dynolab is up"
    register_alerts(own_server, webhook)
    deployment = own_server.read_deployment_by_name("study/a-study")
    run = own_server.create_flow_run_from_deployment(deployment.id, name="a bad night")
    own_server.set_flow_run_state(run.id, Failed(message="a rank died"), force=True)
    began = time.monotonic()
    until(lambda: Webhook.messages, 10)
    record_property("alert_arrives_s", time.monotonic() - began)
    message = Webhook.messages.pop()
    assert message["subject"] == "a bad night: Failed"
    assert (
        message["body"].startswith("a rank died\nhttp://127.0.0.1:")
        and str(run.id) in message["body"]
    )
    register_alerts(own_server, None)
    assert own_server.read_automations_by_name(alerts.AUTOMATION) == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("{webhook}/gone", "it answers 404"),
        ("http://127.0.0.1:9/secret", "takes no message"),
        ("http://[secret", "give the address of a webhook"),
    ],
)
def test_an_address_that_takes_no_message_is_said_before_anything_starts(
    url: str, said: str, webhook: str
) -> None:
    with pytest.raises(ConfigError, match=f"^--notify = .*{said}") as refused:
        check_alerts(url.format(webhook=webhook))
    assert "secret" not in str(refused.value)


@pytest.fixture(scope="module")
def form_checks(started_servers: Services) -> None:
    Thread(target=checks.serve, args=[started_servers.home], daemon=True).start()
    until((started_servers.home / SOCKET).exists, 30)


def test_a_form_that_no_run_could_begin_with_is_refused_at_its_field(
    own_server: SyncPrefectClient, form_checks: None
) -> None:
    name, fields, said = BAD_FORMS[0]
    deployment, form = own_server.read_deployment_by_name(name), {register.PARAMETER: fields}
    with pytest.raises(PrefectHTTPStatusError) as refused:
        own_server.create_flow_run_from_deployment(deployment.id, parameters=form)
    assert said in refused.value.response.json()["detail"]
    # As the page asks before it submits.
    shown = {"schema": deployment.parameter_openapi_schema, "values": form}
    answer = own_server._client.post("/ui/schemas/validate", json=shown).json()
    (error,) = answer["errors"][0]["errors"]
    assert error["property"] == next(iter(fields)) and said in error["errors"][0]


@pytest.mark.faults  # waits for Prefect's own loop
def test_of_runs_that_came_due_while_nothing_ran_one_is_left_and_said(
    own_server: SyncPrefectClient,
) -> None:
    often_due = IntervalSchedule(interval=timedelta(seconds=2))
    one = own_server.read_deployment_by_name("study/a-study")
    made = [DeploymentScheduleCreate(schedule=often_due, slug="often")]
    own_server.create_deployment_schedules(one.id, made)

    def due() -> list[datetime]:
        often = FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=[one.id]),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
        )
        runs = own_server.read_flow_runs(flow_run_filter=often)
        times = [run.expected_start_time for run in runs if run.expected_start_time]
        return [time for time in times if time < datetime.now(UTC)]

    until(lambda: len(due()) > 5, 200)
    newest = max(due())
    (line,) = keep_one_late_run(own_server)
    assert line.startswith("missed  often, ")
    assert newest in due() and len(due()) < 5
    schedule(remove="often")
