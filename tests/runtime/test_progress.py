from __future__ import annotations

import io
import re
from typing import Any

import pytest
import rich.console

from dynolab.results.study import MetricsLine
from tasks.runtime.open_platform import make_progress
from tasks.runtime.track.mlflow_pages import SUMMARY, literal
from tasks.runtime.track.progress import (
    PlainLines,
    Progress,
    ProgressArtifacts,
    RichLines,
    StepReporter,
    emit_event,
    inside_prefect_run,
    outcome_of,
    publish_links,
    run_tags,
    slug,
)
from tasks.runtime.track.runs import Run
from tests.flows.lab import until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    progress = make_progress(stream)
    stage = progress.stage("sft", 3)
    stage.update(2, "loss 1.5")
    stage.close()
    stage.close()
    progress.cached("base", "3f2a")
    first, done, *rest = stream.getvalue().splitlines()
    assert (first, rest) == ("sft: started", ["base: cached 3f2a"])
    assert re.fullmatch(r"sft: done in [0-9.]+ s 2/3 loss 1\.5", done)


def test_plain_lines_are_throttled() -> None:
    stream = io.StringIO()
    stage = Progress(PlainLines(stream, seconds=3600)).stage("sft", 100)
    for step in range(100):
        stage.update(step)
    assert stream.getvalue() == "sft: started\n"
    stage = Progress(PlainLines(stream, seconds=0)).stage("dpo", None)
    stage.update(7, "loss 0.5")
    assert stream.getvalue().endswith("dpo: 7 loss 0.5\n")
    stage = Progress(PlainLines(stream, seconds=3600)).stage("ledger", 4)
    stage.update(0, "trains again")  # before the first step it is shown at once
    stage.update(1, "step 3")
    assert stream.getvalue().endswith("ledger: started\nledger: 0/4 trains again\n")
    stage.close(outcome_of(KeyboardInterrupt()))
    assert "ledger: cancelled in" in stream.getvalue()
    assert (outcome_of(SystemExit(130)), outcome_of(ValueError())) == ("cancelled", "failed")


def test_time_left_is_that_of_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first update on, which of a stage that goes on is not at step 0."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stage = Progress().stage("sft", 100)
    assert stage.left == ""
    stage.update(60)
    now[0] += 30
    assert stage.left == ""
    stage.update(70)
    assert stage.left == "2 min left"
    stage.close()
    assert stage.left == ""


def test_terminal_shows_one_line_for_each_stage() -> None:
    progress = make_progress(Terminal())
    (lines,) = progress.displays
    assert isinstance(lines, RichLines)
    lines.console = rich.console.Console(file=io.StringIO(), force_terminal=True, width=120)
    progress.cached("base")
    first, second = progress.stage("sft", 300), progress.stage("dpo", None)
    first.update(50, "loss 1.25, 3 steps/s")
    second.update(4)
    first.close()
    second.close("failed")
    file = lines.console.file
    assert isinstance(file, io.StringIO)
    shown = file.getvalue()
    for text in ("base", "cached", "sft", "50/300", "loss 1.25, 3 steps/s", "dpo", "failed"):
        assert text in shown
    assert shown.endswith("\x1b[?25h")  # the cursor is back: the display ended with its stages


def test_reporter_shows_loss_and_speed() -> None:
    stream = io.StringIO()
    report = StepReporter(Progress(PlainLines(stream, seconds=0)).stage("sft", 10))
    report(MetricsLine(step=1, examples=4, time=100.0, metrics={"train/loss": 2.0}))
    report(MetricsLine(step=5, examples=20, time=102.0, metrics={"train/loss": 1.5}))
    report(MetricsLine(step=6, examples=24, time=102.5, metrics={"train/margin": 1.0}))
    assert stream.getvalue().splitlines()[1:] == [
        "sft: 1/10 loss 2",
        "sft: 5/10 loss 1.5, 2 steps/s, 1 s left",
        "sft: 6/10 2 steps/s, 1 s left",
    ]


class CreatedRun:
    """Takes the place of a RunTracker whose run the server has created."""

    run, server = Run("4af1", "1", ""), "http://mlflow.test"

    def wait_created(self, timeout: float) -> bool:
        return True


@pytest.mark.services
def test_stage_in_a_flow_shows_progress_links_and_events(prefect_server: None) -> None:
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
    from prefect.runtime import flow_run

    seen: dict[str, Any] = {}
    tracker: Any = CreatedRun()

    @flow
    def study() -> None:
        assert inside_prefect_run()
        lines, published = make_progress(io.StringIO()).displays
        assert isinstance(lines, PlainLines) and isinstance(published, ProgressArtifacts)
        progress = Progress(ProgressArtifacts(seconds=0.05))
        progress.cached("Base world", "3f2a")  # has no artifact
        stage = progress.stage("sft", 200)
        stage.update(50, "loss 1.5")
        stage.close("failed")
        stage.update(60)
        done = progress.stage("dpo", None)
        done.update(7)
        done.close()
        publish_links("mlflow", "sft", {}, tracker=tracker)
        publish_links(SUMMARY, "my study", {}, tracker=tracker, seconds=30)
        link = {"Report": "http://r"}
        publish_links(SUMMARY, "my study", link, ["y", "n"], tracker, charts=True, seconds=30)
        emitting = emit_event("dynolab.squeeze.alarm", "preference/4f", "preference", {"rise": 5.0})
        assert emitting is not None
        emitting.join(30)
        seen.update(id=flow_run.get_id(), tags=run_tags())

    study()

    mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[seen["id"]]))
    with get_client(sync_client=True) as client:
        published = {item.key: item for item in client.read_artifacts(artifact_filter=mine)}
    link, summary = published.pop("mlflow-sft"), published.pop(f"summary-my-study-{seen['id'][:8]}")
    assert {key: (item.data, item.description) for key, item in published.items()} == {
        "progress-sft": (25.0, "sft: 50/200 loss 1.5 (failed)"),
        "progress-dpo": (100.0, "dpo: 7 (done)"),
    }
    page = "http://mlflow.test/#/experiments/1/runs"
    assert link.data == f"[MLflow run of sft]({page}/4af1?workflowType=machine_learning)"
    assert f"[Charts of my study]({page}?viewStateShareKey=4af1&" in summary.data
    assert summary.data.startswith("[Report](http://r) · [MLflow") and "\n\ny\n\nn" in summary.data
    wanted = {"filter": {"event": {"name": ["dynolab.squeeze.alarm"]}}}
    with get_client(sync_client=True) as client:
        # Events reach the server a moment after they are raised.
        (event,) = until(
            lambda: client.request("POST", "/events/filter", json=wanted).json()["events"], 30
        )
    assert event["resource"]["prefect.resource.id"] == "dynolab.preference/4f"
    assert event["payload"] == {"rise": 5.0}
    related = {resource["prefect.resource.id"] for resource in event["related"]}
    assert f"prefect.flow-run.{seen['id']}" in related
    assert seen["tags"]["prefect.flow_run_id"] == seen["id"]
    assert seen["tags"]["prefect.flow_run_url"].endswith(seen["id"])


def test_names_of_rows_are_shown_and_not_read_as_markdown() -> None:
    text = "by [a_row](http://x) | `b` <b>, 5.0%"
    assert literal(text) == r"by \[a\_row\]\(http://x\) \| \`b\` \<b\>, 5.0%"


@pytest.mark.services
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
    assert not inside_prefect_run()
    assert run_tags() == {}
    publish_links(SUMMARY, "sft", {}, tracker=tracker)
    assert emit_event("dynolab.squeeze.alarm", "preference/4f", "preference", {}) is None
    (lines,) = make_progress(io.StringIO()).displays
    assert isinstance(lines, PlainLines)
    assert slug("DPO: β=0.1 (seed 3)") == "dpo-0-1-seed-3"
