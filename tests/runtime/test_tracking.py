"""Tracking against a real MLflow server, read back by MLflow's own client."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tasks.runtime.track.tracking import RunTracker, Tracking
from tests.flows.lab import until

if TYPE_CHECKING:
    from tests.runtime.conftest import MlflowServer

pytestmark = pytest.mark.services

SECONDS = 60.0  # for anything that the server must do; it is busy with nothing else
NOWHERE = "http://127.0.0.1:1/"
LARGEST_FLOAT = 1.7976931348623157e308  # as which MLflow stores infinity

# A process that logs steps until it is killed: address, outbox, first step, artifact.
WRITER = """
import itertools, sys, time
from pathlib import Path
from tasks.runtime.track.tracking import Tracking
uri, outbox, first, artifact = sys.argv[1:]
tracking = Tracking(uri, Path(outbox), "killed")
run = tracking.start_run("stage", tags={}, params={"beta": 0.1}, resume_key="stage-" + outbox)
run.log_artifact(Path(artifact), "plots")
for step in itertools.count(int(first)):
    run.log_metrics({"loss": 1 / (step + 1)}, step)
    if step == int(first) + 50:
        print("written", flush=True)
    time.sleep(0.002)
"""


def history(client: Any, run: RunTracker | str | None, key: str) -> list[tuple[int, float]]:
    run_id = run.run_id if isinstance(run, RunTracker) else run
    return sorted((item.step, item.value) for item in client.get_metric_history(run_id, key))


def runs_of(client: Any, experiment: str, outbox: Path) -> list[Any]:
    known = client.get_experiment_by_name(experiment)
    condition = f"tags.stage_key = 'stage-{outbox}'"
    return list(client.search_runs([known.experiment_id], condition))


def test_a_study_leads_to_its_page_and_to_the_charts_of_its_trainings(
    tracking: Tracking, client: Any
) -> None:
    study = tracking.start_run("study", tags={}, params={})
    study.describe(())
    stages = {
        name: tracking.start_run(name, parent=study, tags={}, params={})
        for name in ("data", "sft", "dpo")
    }
    for name in ("sft", "dpo"):
        stages[name].log_metrics({"train/learning_rate": 0.1}, 1)
    for stage in stages.values():
        stage.finish("FINISHED")
    tracking.send_pending(SECONDS)
    run = study.run
    assert run is not None

    def charted() -> set[str]:
        tags = client.get_experiment(run.experiment_id).tags
        state = json.loads(tags[f"mlflow.sharedViewState.{run.run_id}"])
        found = client.search_runs([run.experiment_id], state["searchFilter"])
        return {each.info.run_name for each in found}

    assert charted() == {"sft", "dpo"}
    study.describe([str(stages["dpo"].run_id)], page=("a1b2", "report/report.html"))
    study.finish("FINISHED")
    tracking.send_pending(SECONDS)
    assert charted() == {"dpo"}
    place, kind = f"#/experiments/{run.experiment_id}/runs", "workflowType=machine_learning"
    view = f"viewStateShareKey={run.run_id}&compareRunsMode=CHART"
    assert client.get_run(run.run_id).data.tags["mlflow.note.content"] == (
        f"[Report]({place}/a1b2/artifacts/report/report.html?{kind}) · "
        f"[Charts]({place}?{view}&{kind})"
    )


def test_run_arrives_whole(tracking: Tracking, client: Any, tmp_path: Path) -> None:
    figure = tmp_path / "learning path.html"
    figure.write_text("<html>force</html>")
    config = {"optimizer": {"lr": 1e-4, "betas": [0.9, 0.95]}, "name": "", "resume": None}

    study = tracking.start_run("study", tags={"kind": "study"}, params={})
    stage = tracking.start_run(
        "dpo", parent=study, tags={"data": "x" * 9000}, params=config, resume_key="k1"
    )
    stage.log_metrics({"train/loss": 0.5, "probe/chosen/logp": -3.0}, 1, timestamp_ms=1234)
    stage.log_metrics({"train/loss": math.nan}, 2)
    stage.log_metrics({"train/loss": math.inf}, 3)
    stage.log_metrics({"train/loss": -math.inf}, 4)
    stage.log_artifact(figure, "plots/paths")
    figure.unlink()
    stage.finish("FINISHED")
    study.finish("FAILED")
    stage.log_metrics({"train/loss": 0.1}, 5)  # after the end: logged, and left out

    assert tracking.send_pending(SECONDS) == 0
    assert list(tracking.outbox.iterdir()) == []
    run = client.get_run(stage.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "dpo")
    assert client.get_run(study.run_id).info.status == "FAILED"
    assert run.data.tags.items() >= {("mlflow.parentRunId", study.run_id), ("stage_key", "k1")}
    assert len(run.data.tags["data"]) == 8000
    assert run.data.params == {
        "optimizer.lr": "0.0001",
        "optimizer.betas": "[0.9, 0.95]",
        "name": "",
        "resume": "None",
    }
    steps = history(client, stage, "train/loss")
    assert [step for step, _ in steps] == [1, 2, 3, 4]
    assert math.isnan(steps[1][1])
    assert [value for _, value in steps[2:]] == [LARGEST_FLOAT, -LARGEST_FLOAT]
    assert client.get_metric_history(stage.run_id, "probe/chosen/logp")[0].timestamp == 1234
    copy = client.download_artifacts(stage.run_id, "plots/paths/learning path.html", str(tmp_path))
    assert Path(copy).read_text() == "<html>force</html>"


def test_much_at_once_is_sent_in_batches(tracking: Tracking, client: Any) -> None:
    run = tracking.start_run("big", tags={}, params={f"p{i}": "é" * 7000 for i in range(250)})
    run.set_tags({f"t{i}": "y" for i in range(150)})
    run.log_metrics({f"m{i}": float(i) for i in range(2300)}, 0)
    for step in range(1, 1501):
        run.log_metrics({"m0": step / 3}, step)
    run.finish("FINISHED")
    assert tracking.send_pending(SECONDS) == 0
    data = client.get_run(run.run_id).data
    assert [len(value) for value in data.params.values()] == 250 * [6000]
    assert sum(key.startswith("t") for key in data.tags) == 150
    assert len(data.metrics) == 2300
    assert history(client, run, "m0") == [(0, 0.0)] + [(s, s / 3) for s in range(1, 1501)]


def test_what_the_server_refuses_is_left_out_alone(tracking: Tracking, client: Any) -> None:
    run = tracking.start_run("refused", tags={}, params={"beta": 0.1})
    assert run.wait_created(SECONDS)
    assert tracking.send_pending(SECONDS) == 0
    run.log_params({"beta": 0.2, "lr": 1})  # a param cannot change
    run.log_metrics({"good": 1.0, "a name with a * star": 2.0}, 1)
    run.finish("FINISHED")
    assert tracking.send_pending(SECONDS) == 0
    data = client.get_run(run.run_id).data
    assert (data.params, data.metrics) == ({"beta": "0.1", "lr": "1"}, {"good": 1.0})


def test_deleted_run_is_set_aside(tracking: Tracking, client: Any) -> None:
    run = tracking.start_run("deleted", tags={}, params={})
    assert run.wait_created(SECONDS)
    client.delete_run(run.run_id)
    run.log_metrics({"loss": 1.0}, 1)
    other = tracking.start_run("other", tags={}, params={})
    other.finish("FINISHED")
    assert tracking.send_pending(SECONDS) == 0
    assert client.get_run(other.run_id).info.status == "FINISHED"
    assert [path.suffix for path in tracking.outbox.glob("*.rejected")] == [".rejected"]
    run.log_metrics({"loss": 1.0}, 2)
    run.finish("FAILED")
    assert tracking.send_pending(SECONDS) == 0


def test_sending_all_again_changes_nothing(
    mlflow_server: MlflowServer, client: Any, tmp_path: Path
) -> None:
    """Dying after a request and before its offset is noted is the worst moment to die."""
    first = Tracking(mlflow_server.uri, tmp_path / "outbox", "tests")
    run = first.start_run("twice", tags={}, params={"beta": 0.1})
    for step in range(100):
        run.log_metrics({"loss": math.nan if step == 5 else 1 / (step + 1)}, step)
    assert first.close(SECONDS) == 0
    for state in (tmp_path / "outbox").glob("*.state"):
        state.unlink()
    second = Tracking(mlflow_server.uri, tmp_path / "outbox", "tests")
    assert second.close(SECONDS) == 0
    assert list((tmp_path / "outbox").iterdir()) == []
    assert [step for step, _ in history(client, run, "loss")] == list(range(100))
    experiment = client.get_experiment_by_name("tests").experiment_id
    assert len(client.search_runs([experiment], "tags.mlflow.runName = 'twice'")) == 1


@pytest.mark.parametrize("status", ["FAILED", "FINISHED"])
def test_resumed_stage_reopens_its_unfinished_run(
    tracking: Tracking, client: Any, tmp_path: Path, status: Any
) -> None:
    key = f"stage-{tmp_path}"
    before = tracking.start_run("sft", tags={}, params={"beta": 0.1}, resume_key=key)
    for step in range(1, 8):
        before.log_metrics(
            {"loss": float(step), "sparse": 0.0} if step % 5 == 0 else {"loss": 0}, step
        )
    before.finish(status)
    after = tracking.start_run("sft", tags={"try": "2"}, params={"beta": 0.1}, resume_key=key)
    for step in range(6, 11):  # resumed from the checkpoint at step 5
        after.log_metrics({"loss": 9.0, "sparse": 1.0}, step)
    after.finish("FINISHED")
    assert tracking.send_pending(SECONDS) == 0
    if status == "FINISHED":
        assert after.run_id != before.run_id
        assert [step for step, _ in history(client, after, "loss")] == [6, 7, 8, 9, 10]
        return
    assert after.run_id == before.run_id
    assert [step for step, _ in history(client, after, "loss")] == list(range(1, 11))
    assert [step for step, _ in history(client, after, "sparse")] == [5, 6, 7, 8, 9, 10]
    run = client.get_run(after.run_id)
    assert (run.info.status, run.data.tags["try"]) == ("FINISHED", "2")


def write_and_kill(uri: str, outbox: Path, first: int, artifact: Path) -> list[int]:
    """Steps that a process had written when it was killed."""
    command = [sys.executable, "-c", WRITER, uri, str(outbox), str(first), str(artifact)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"written\n"
            if uri != NOWHERE:  # let it be in the middle of sending
                until(lambda: any(outbox.glob("*.state")), SECONDS)
            assert left_by_others(uri, outbox) == 0  # alive, it keeps its queue to itself
        finally:
            os.kill(writer.pid, signal.SIGKILL)
    newest = max(outbox.glob("*.jsonl"))
    rows = [json.loads(line) for line in newest.read_bytes().splitlines(keepends=True)[:-1]]
    return [row["step"] for row in rows if row["op"] == "metrics"]


def left_by_others(uri: str, outbox: Path) -> int:
    other = Tracking(uri, outbox, "killed")
    left = other.send_pending(timeout=0)
    other.close(timeout=0)
    return left


def test_next_process_sends_what_a_killed_one_left(
    mlflow_server: MlflowServer, client: Any, tmp_path: Path
) -> None:
    outbox, figure = tmp_path / "outbox", tmp_path / "plot.html"
    figure.write_text("plot")
    written = write_and_kill(mlflow_server.uri, outbox, 0, figure)
    rest = Tracking(mlflow_server.uri, outbox, "killed")
    assert rest.close(SECONDS) == 0
    assert list(outbox.iterdir()) == []
    (run,) = runs_of(client, "killed", outbox)
    assert run.info.status == "KILLED"
    steps = [step for step, _ in history(client, run.info.run_id, "loss")]
    assert steps[: len(written)] == written
    assert steps == list(range(len(steps)))
    assert [item.path for item in client.list_artifacts(run.info.run_id, "plots")] == [
        "plots/plot.html"
    ]


def test_resume_after_kills_and_outage_makes_one_run(
    mlflow_server: MlflowServer, client: Any, tmp_path: Path
) -> None:
    """Two processes die without having reached the server; the third one finds it."""
    outbox, figure = tmp_path / "outbox", tmp_path / "plot.html"
    figure.write_text("plot")
    first = write_and_kill(NOWHERE, outbox, 0, figure)
    second = write_and_kill(NOWHERE, outbox, 20, figure)
    third = Tracking(mlflow_server.uri, outbox, "killed")
    run = third.start_run("stage", tags={}, params={}, resume_key=f"stage-{outbox}")
    last = max(*first, *second) + 30
    for step in range(30, last):
        run.log_metrics({"loss": 0.0}, step)
    run.finish("FINISHED")
    assert third.close(SECONDS) == 0
    (sent,) = runs_of(client, "killed", outbox)
    assert (sent.info.run_id, sent.info.status) == (run.run_id, "FINISHED")
    assert [step for step, _ in history(client, run, "loss")] == list(range(last))


def test_server_comes_late_and_is_killed_in_between(
    unstarted_mlflow: MlflowServer, tmp_path: Path
) -> None:
    server = unstarted_mlflow
    tracking = Tracking(server.uri, tmp_path / "outbox", "outage")
    study = tracking.start_run("study", tags={}, params={})
    run = tracking.start_run("stage", parent=study, tags={}, params={"beta": 0.1})
    run.log_metrics({"loss": 0.0}, 0)
    assert tracking.send_pending(timeout=0.5) > 0
    assert run.run_id is None and not run.wait_created(0)

    server.start()
    assert run.wait_created(SECONDS)
    stop = threading.Event()
    written = [0]

    def train() -> None:
        while not stop.wait(0.001):
            written.append(written[-1] + 1)
            run.log_metrics({"loss": float(written[-1]), "margin": 1.0}, written[-1])

    training = threading.Thread(target=train)
    training.start()
    try:
        for step in range(15_000):  # so much that the server dies in the middle of it
            run.log_metrics({"burst": 1 / (step + 1)}, step)
        assert tracking.send_pending(timeout=1.0) > 1000
        server.kill()
        assert tracking.send_pending(timeout=0.5) > 0
        server.start()
    finally:
        stop.set()
        training.join()
    run.finish("FINISHED")
    study.finish("FINISHED")
    assert tracking.close(SECONDS) == 0

    from mlflow import MlflowClient

    client = MlflowClient(server.uri)
    assert history(client, run, "loss") == [(step, float(step)) for step in written]
    assert [step for step, _ in history(client, run, "margin")] == written[1:]
    assert [step for step, _ in history(client, run, "burst")] == list(range(15_000))
    experiment = client.get_experiment_by_name("outage").experiment_id
    assert len(client.search_runs([experiment])) == 2
    assert client.get_run(run.run_id).data.tags["mlflow.parentRunId"] == study.run_id
    assert client.get_run(run.run_id).info.status == "FINISHED"
