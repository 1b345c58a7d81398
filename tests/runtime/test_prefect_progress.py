"""Progress and links in a real Prefect server of the test's own."""

from __future__ import annotations

import io
from typing import Any

import pytest

from tasks.runtime.open_platform import make_progress
from tasks.runtime.track.progress import (
    PlainLines,
    Progress,
    ProgressArtifacts,
    inside_run,
    link_mlflow_run,
    link_report,
    raise_event,
    run_tags,
    slug,
)
from tasks.runtime.track.runs import Run
from tests.flows.lab import until

pytestmark = pytest.mark.services


class CreatedRun:
    """Takes the place of a RunTracker whose run the server has created."""

    run, server = Run("4af1", "1", ""), "http://mlflow.test"

    def wait_created(self, timeout: float) -> bool:
        return True


def artifacts(flow_run_id: Any) -> dict[str, Any]:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]))
    with get_client(sync_client=True) as client:
        return {item.key: item for item in client.read_artifacts(artifact_filter=mine)}


def test_stage_in_a_flow_shows_progress_and_links(prefect_server: None) -> None:
    from prefect import flow, tags
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    seen: dict[str, Any] = {}
    tracker: Any = CreatedRun()

    @flow
    def study() -> None:
        assert inside_run()
        lines, published = make_progress(io.StringIO()).displays
        assert isinstance(lines, PlainLines) and isinstance(published, ProgressArtifacts)
        progress = Progress(ProgressArtifacts(seconds=0.05))
        progress.cached("Base world", "3f2a")
        stage = progress.stage("sft", 200)
        stage.update(50, "loss 1.5")
        stage.close("failed")
        stage.update(60)
        done = progress.stage("dpo", None)
        done.update(7)
        done.close()
        waiting = link_mlflow_run(tracker, "sft", tag_flow_run=True, charts=True)
        assert waiting is not None
        waiting.join(30)
        link_report("sft", "http://mlflow.test/#/page")
        seen.update(id=flow_run.get_id(), tags=run_tags())

    with tags("mine"):
        study()

    published = artifacts(seen["id"])
    link, report = published.pop("mlflow-sft"), published.pop("report-sft")
    assert {key: (item.data, item.description) for key, item in published.items()} == {
        "progress-sft": (25.0, "sft: 50/200 loss 1.5 (failed)"),
        "progress-dpo": (100.0, "dpo: 7 (done)"),
        "progress-base-world": (100.0, "Base world: cached 3f2a"),
    }
    page = "http://mlflow.test/#/experiments/1/runs"
    assert f"[MLflow run of sft]({page}/4af1?workflowType=machine_learning)" in link.data
    assert f"[Charts of sft]({page}?viewStateShareKey=4af1&" in link.data
    assert report.data == "[Report of sft](http://mlflow.test/#/page)"
    with get_client(sync_client=True) as client:
        assert set(client.read_flow_run(seen["id"]).tags) == {"mine", "mlflow:4af1"}
    assert seen["tags"]["prefect.flow_run_id"] == seen["id"]
    assert seen["tags"]["prefect.flow_run_url"].endswith(seen["id"])


def events_named(name: str) -> list[dict[str, Any]]:
    """Events that the server knows; it is told of them a moment after they are raised."""
    from prefect.client.orchestration import get_client

    wanted = {"filter": {"event": {"name": [name]}}}
    with get_client(sync_client=True) as client:
        return until(
            lambda: client.request("POST", "/events/filter", json=wanted).json()["events"], 30
        )


def test_an_event_leads_to_the_flow_run_that_raised_it(prefect_server: None) -> None:
    from prefect import flow
    from prefect.runtime import flow_run

    seen: dict[str, str] = {}

    @flow
    def study() -> None:
        thread = raise_event("dynolab.squeeze.alarm", "preference/4f", "preference", {"rise": 5.0})
        assert thread is not None
        thread.join(30)
        seen["id"] = flow_run.get_id()

    study()
    (event,) = events_named("dynolab.squeeze.alarm")
    assert event["resource"]["prefect.resource.id"] == "dynolab.preference/4f"
    assert event["payload"] == {"rise": 5.0}
    related = {resource["prefect.resource.id"] for resource in event["related"]}
    assert f"prefect.flow-run.{seen['id']}" in related


def test_trouble_with_prefect_ends_no_stage(
    prefect_server: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from prefect import artifacts

    def away(**options: Any) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(artifacts, "get_client", away)
    stage = Progress(ProgressArtifacts(seconds=0.01)).stage("sft", 10)
    stage.update(5)
    stage.close()
    assert "cannot publish the progress of sft in Prefect: nobody there" in caplog.text


def test_outside_of_a_run_there_is_nothing_to_link() -> None:
    tracker: Any = CreatedRun()
    assert not inside_run()
    assert run_tags() == {}
    assert link_mlflow_run(tracker, "sft") is None
    assert raise_event("dynolab.squeeze.alarm", "preference/4f", "preference", {}) is None
    (lines,) = make_progress(io.StringIO()).displays
    assert isinstance(lines, PlainLines)
    assert slug("DPO: β=0.1 (seed 3)") == "dpo-0-1-seed-3"
