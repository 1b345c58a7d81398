"""Runs and models against a real MLflow server, read back by MLflow's own client."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flows.run import register_model
from tasks.runtime.cleanup import clean_up
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.runs import RunTracker, left_behind
from tasks.runtime.track.tracking import Tracking
from tasks.runtime.training_monitor import follow
from tasks.runtime.work import StageResult

if TYPE_CHECKING:
    from tests.runtime.conftest import MlflowServer

pytestmark = pytest.mark.services

SECONDS = 60.0  # for anything that the server must do; it is busy with nothing else

# Logs steps 0 to 49 and dies: address, outbox, artifact.
WRITER = """
import os, sys
from pathlib import Path
from tasks.runtime.track.tracking import Tracking
uri, outbox, artifact = sys.argv[1:]
tracking = Tracking(uri, Path(outbox), "killed")
run = tracking.start_run("stage", tags={"stage_key": "stage-" + outbox}, params={"beta": 0.1},
    resume_by="stage_key")
run.log_artifact(Path(artifact), "plots")
for step in range(50):
    run.log_metrics({"loss": 1 / (step + 1)}, step)
os.kill(os.getpid(), 9)
"""


def history(client: Any, run: RunTracker | str | None, key: str) -> list[tuple[int, float]]:
    run_id = run.run_id if isinstance(run, RunTracker) else run
    return sorted((item.step, item.value) for item in client.get_metric_history(run_id, key))


def line(step: int, **metrics: float) -> str:
    return json.dumps({"step": step, "examples": step, "time": 1.5 + step, "metrics": metrics})


def test_a_run_arrives_whole(tracking: Tracking, client: Any, tmp_path: Path) -> None:
    figure = tmp_path / "learning path.html"
    figure.write_text("<html>force</html>")
    config = {"optimizer": {"lr": 1e-4, "betas": [0.9, 0.95]}, "name": "", "resume": None}
    study = tracking.start_run("study", tags={"kind": "study"}, params={})
    stage = tracking.start_run("dpo", parent=study, tags={"data": "x" * 9000}, params=config)
    for step, value in enumerate((0.5, math.nan, math.inf), start=1):
        stage.log_metrics({"train/loss": value, "train/learning_rate": 0.1}, step)
    study.describe((), ("a1b2", "report/report.html"), arms=["c3d4"], arms_metrics=["train/loss"])
    stage.log_artifact(figure, "plots/paths")
    figure.unlink()
    stage.finish("FINISHED")
    study.finish("FAILED")

    assert tracking.send_pending(SECONDS) == 0
    assert list(tracking.outbox.iterdir()) == []
    run = client.get_run(stage.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "dpo")
    assert client.get_run(study.run_id).info.status == "FAILED"
    assert run.data.tags.items() >= {("mlflow.parentRunId", study.run_id)}
    assert len(run.data.tags["data"]) == 8000
    assert run.data.params == {
        "optimizer.lr": "0.0001",
        "optimizer.betas": "[0.9, 0.95]",
        "name": "",
        "resume": "None",
    }
    assert [step for step, _ in history(client, stage, "train/loss")] == [1, 2, 3]
    page = client.get_run(study.run_id).data.tags["mlflow.note.content"]
    assert "a1b2/artifacts/report/report.html" in page and study.run_id in page
    shared = f"mlflow.sharedViewState.{study.run_id}"
    charts = json.loads(client.get_experiment(run.info.experiment_id).tags[shared])
    (found,) = client.search_runs([run.info.experiment_id], charts["searchFilter"])
    assert found.info.run_id == stage.run_id, "the charts are those of its trainings"
    arms = json.loads(client.get_experiment(run.info.experiment_id).tags[f"{shared}-arms"])
    assert "c3d4" in arms["searchFilter"] and f"{study.run_id}-arms" in page
    assert arms["selectedColumns"] == ["metrics.`train/loss`"]
    copy = client.download_artifacts(stage.run_id, "plots/paths/learning path.html", str(tmp_path))
    assert Path(copy).read_text() == "<html>force</html>"


def test_what_the_server_refuses_is_left_out_alone(tracking: Tracking, client: Any) -> None:
    run = tracking.start_run("refused", tags={}, params={f"p{i}": i for i in range(250)})
    for step in range(1200):
        run.log_metrics({"good": float(step)}, step)
    run.log_metrics({"a name with a * star": 2.0}, 3)
    run.register_model("refused", "/etc/passwd", {}, None)
    run.log_metrics({"after": 1.0}, 0)
    run.finish("FINISHED")
    assert tracking.send_pending(SECONDS) == 0
    data = client.get_run(run.run_id).data
    assert (len(data.params), data.metrics) == (250, {"good": 1199.0, "after": 1.0})
    assert len(history(client, run, "good")) == 1200
    assert client.search_model_versions("name = 'refused'") == []


def test_a_deleted_run_is_set_aside(tracking: Tracking, client: Any) -> None:
    run = tracking.start_run("deleted", tags={}, params={})
    assert run.wait_created(SECONDS)
    client.delete_run(run.run_id)
    run.log_metrics({"loss": 1.0}, 1)
    other = tracking.start_run("other", tags={}, params={})
    other.finish("FINISHED")
    assert tracking.send_pending(SECONDS) == 0
    assert client.get_run(other.run_id).info.status == "FINISHED"
    assert [path.name[:9] for path in tracking.outbox.iterdir()] == ["rejected-"]
    run.log_metrics({"loss": 1.0}, 2)
    run.finish("FAILED")


def test_a_failed_run_says_why_as_plain_text(tracking: Tracking, client: Any) -> None:
    run = tracking.start_run("failing", tags={}, params={})
    run.finish("FAILED", ValueError("loss = nan: [see](javascript:x)"))
    killed = tracking.start_run("killed", tags={}, params={})
    killed.finish("KILLED", ValueError("not said"))
    assert tracking.send_pending(SECONDS) == 0
    described, bare = (client.get_run(one.run_id).data.tags for one in (run, killed))
    said = described["mlflow.note.content"]
    assert said.startswith("**") and r"nan: \[see\]\(javascript:x\)" in said
    assert "mlflow.note.content" not in bare


def test_a_run_that_goes_on_and_ends_well_no_longer_says_why_it_failed(
    tracking: Tracking, client: Any
) -> None:
    for error in (ValueError("no room"), None):
        run = tracking.start_run("again", tags={"key": "4f"}, params={}, resume_by="key")
        run.finish("FINISHED" if error is None else "FAILED", error)
        assert tracking.send_pending(SECONDS) == 0
        tags = client.get_run(run.run_id).data.tags
        assert ("no room" in tags.get("mlflow.note.content", "")) == (error is not None)


def test_a_file_is_followed_through_an_outage_and_sent_whole_again(
    unstarted_mlflow: MlflowServer, tmp_path: Path
) -> None:
    server, outbox, file = unstarted_mlflow, tmp_path / "outbox", tmp_path / "metrics.jsonl"
    tracking = Tracking(server.uri, outbox, "outage")
    study = tracking.start_run("study", tags={}, params={})
    run = tracking.start_run("stage", parent=study, tags={}, params={"beta": 0.1})
    file.write_text("".join(line(step, loss=step / 3, margin=1.0) + "\n" for step in range(1100)))
    follow(file, run)
    assert tracking.send_pending(timeout=0.5) == 2
    assert run.run_id is None and not run.wait_created(0)
    server.start()
    assert run.wait_created(SECONDS) and tracking.send_pending(SECONDS) == 0
    server.kill()
    with file.open("a") as stream:
        stream.write("not json\n" + line(1100, loss=0.0) + '\n{"step": 1101')
    follow(file, run)
    file.unlink()  # with its stage's work folder
    run.finish("FINISHED")
    study.finish("FINISHED")
    assert tracking.close(0.5) == 2

    server.start()
    kept = shutil.copytree(outbox, tmp_path / "kept")
    for _ in range(2):
        again = Tracking(server.uri, outbox, "outage")
        assert again.close(SECONDS) == 0
        assert list(outbox.iterdir()) == []
        shutil.copytree(kept, outbox, dirs_exist_ok=True)

    from mlflow import MlflowClient

    client = MlflowClient(server.uri)
    expected = [(step, step / 3) for step in range(1100)] + [(1100, 0.0)]
    assert history(client, run, "loss") == expected
    assert [step for step, _ in history(client, run, "margin")] == list(range(1100))
    experiment = client.get_experiment_by_name("outage").experiment_id
    assert len(client.search_runs([experiment])) == 2
    stage = client.get_run(run.run_id)
    assert stage.info.status == "FINISHED"
    assert stage.data.tags["mlflow.parentRunId"] == study.run_id


@pytest.mark.parametrize("status", ["FAILED", "SCHEDULED", "FINISHED"])
def test_a_resumed_stage_reopens_its_unfinished_run(
    tracking: Tracking, client: Any, tmp_path: Path, status: Any
) -> None:
    stage, file = {"stage_key": f"stage-{tmp_path}"}, tmp_path / "metrics.jsonl"
    resumed = {"params": {"beta": 0.1}, "resume_by": "stage_key"}
    before = tracking.start_run("sft", tags=stage, **resumed)
    file.write_text("".join(line(step, loss=1.0) + "\n" for step in range(1, 8)))
    follow(file, before)
    before.finish(status)
    after = tracking.start_run("sft", tags=stage | {"try": "2"}, **resumed)
    for step in range(6, 11):  # from the checkpoint at step 5
        after.log_metrics({"loss": 9.0, "sparse": 1.0}, step)
    after.finish("FINISHED")
    assert tracking.send_pending(SECONDS) == 0
    steps = [step for step, _ in history(client, after, "loss")]
    if status == "FINISHED":
        assert after.run_id != before.run_id and steps == list(range(6, 11))
        return
    assert after.run_id == before.run_id and steps == list(range(1, 11))
    assert [step for step, _ in history(client, after, "sparse")] == list(range(6, 11))
    run = client.get_run(after.run_id)
    assert (run.info.status, run.data.tags["try"]) == ("FINISHED", "2")


def test_cleaning_up_sends_what_a_killed_process_left(
    mlflow_server: MlflowServer, client: Any, tmp_path: Path
) -> None:
    outbox, figure = tmp_path / "outbox", tmp_path / "plot.html"
    figure.write_text("plot")
    command = [sys.executable, "-c", WRITER, mlflow_server.uri, str(outbox), str(figure)]
    for uri in (mlflow_server.uri, "http://127.0.0.1:1"):
        command[3] = uri
        assert subprocess.run(command).returncode == -9
    home = Settings(home=tmp_path, store="", mlflow_tracking_uri=mlflow_server.uri)
    for _ in range(2):
        assert clean_up(home)["unsent"] == 0
        assert list(outbox.iterdir()) == [] and not left_behind(outbox)
    experiment = client.get_experiment_by_name("killed").experiment_id
    (run,) = client.search_runs([experiment], f"tags.stage_key = 'stage-{outbox}'")
    assert run.info.status == "KILLED"
    assert [step for step, _ in history(client, run.info.run_id, "loss")] == list(range(50))
    assert [item.path for item in client.list_artifacts(run.info.run_id, "plots")] == [
        "plots/plot.html"
    ]


def test_a_living_process_keeps_its_runs_to_itself(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:1"
    living = Tracking(nowhere, tmp_path, "tests")
    living.start_run("run", tags={}, params={})
    other = Tracking(nowhere, tmp_path, "tests")
    assert other.close(timeout=0) == 0 and not other.connected.is_set(), "nothing to send"
    assert living.close(timeout=0) == 1


KEY, ATTEMPT = "a" * 64, f"attempt-{'b' * 32}"


def a_result(root: str, attempt: str = ATTEMPT) -> StageResult:
    return StageResult(
        stage="preference",
        key=KEY,
        address=f"{root}/stages/preference/{KEY}/{attempt}",
        digest="c" * 64,
        metrics={},
        mlflow_run_id=None,
        cached=False,
    )


@pytest.mark.parametrize("root", ["file:///home/stages/store", "s3://bucket/store"])
def test_a_model_is_listed_once_for_each_place_it_lies_at(
    root: str, client: Any, tracking: Tracking
) -> None:
    inner = f"stages/preference/{KEY}/{ATTEMPT}/model"
    source = f"{root}/{inner}" if root.startswith("s3") else f"dynolab:/{inner}"
    name = f"dynolab: {root[:2]}/study"
    run = tracking.start_run("study", tags={}, params={})
    for result in (a_result(root), a_result(root), a_result(root, f"attempt-{'d' * 32}")):
        register_model(run, name, result)
    run.finish("FINISHED")
    assert tracking.send_pending(SECONDS) == 0
    listed = client.search_model_versions(f"name = 'dynolab- {root[:2]}-study'")
    versions = {int(version.version): version for version in listed}
    assert versions.keys() == {1, 2} and len(listed) == 2
    address = a_result(root).address
    assert (versions[1].source, versions[1].run_id) == (source, run.run_id)
    assert versions[1].tags.items() >= {
        ("store.address", address),
        ("stage_key", KEY),
        ("store.digest", "c" * 64),
    }
