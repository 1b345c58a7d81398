"""Models that MLflow lists by where they lie in the store, on a real server."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.runtime.mlflow_models import model_source, register_model
from tasks.runtime.track.runs import Tracking
from tasks.runtime.work import StageResult

KEY, ATTEMPT = "a" * 64, f"attempt-{'b' * 32}"
SECONDS = 60.0


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


def test_the_source_is_where_the_model_lies() -> None:
    inner = f"stages/preference/{KEY}/{ATTEMPT}"
    assert model_source(f"s3://bucket/store/{inner}") == f"s3://bucket/store/{inner}/model"
    assert model_source(f"file:///my/stages/store/{inner}") == f"dynolab:/{inner}/model"


@pytest.mark.services
@pytest.mark.parametrize("root", ["file:///home/me/.dynolab/store", "s3://bucket/store"])
def test_a_model_is_listed_once_for_each_place_it_lies_at(
    root: str, client: Any, tracking: Tracking
) -> None:
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
    assert (versions[1].source, versions[1].run_id) == (model_source(address), run.run_id)
    assert versions[1].tags.items() >= {
        ("store.address", address),
        ("stage_key", KEY),
        ("store.digest", "c" * 64),
    }


@pytest.mark.services
def test_a_refused_model_ends_nothing(client: Any, tracking: Tracking) -> None:
    run = tracking.start_run("study", tags={}, params={})
    run.register_model("refused", "/etc/passwd", {}, None)
    run.log_metrics({"after": 1.0}, 0)
    run.finish("FINISHED")
    assert tracking.send_pending(SECONDS) == 0
    assert client.get_run(run.run_id).data.metrics == {"after": 1.0}
    assert client.search_model_versions("name = 'refused'") == []
