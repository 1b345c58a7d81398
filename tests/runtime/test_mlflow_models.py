"""Models that MLflow lists by where they lie in the store, on a real server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dynolab.errors import ConfigError
from dynolab.store import Manifest, Store
from tasks.runtime.lineage import addressed
from tasks.runtime.mlflow_models import model_source, register_model
from tasks.runtime.track.runs import Tracking
from tasks.runtime.work import StageResult

if TYPE_CHECKING:
    from tests.runtime.conftest import MlflowServer

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


@pytest.mark.services
def test_lineage_begins_at_a_listed_model(
    mlflow_server: MlflowServer, tracking: Tracking, tmp_path: Path
) -> None:
    store = Store(f"file://{tmp_path}/store", cache=tmp_path / "cache")
    (tmp_path / "output" / "model").mkdir(parents=True)
    (tmp_path / "output" / "model" / "weights").write_text("w")
    place = store.place("preference", KEY)
    done = place.commit(tmp_path / "output", Manifest(stage="preference", key=KEY, version=1))
    run = tracking.start_run("study", tags={}, params={})
    register_model(run, "begun", StageResult.of(place, done, cached=False))
    register_model(run, "lost", a_result(f"file://{tmp_path}/store"))
    run.finish("FINISHED")
    assert tracking.send_pending(SECONDS) == 0
    found = addressed(store, "models:/begun/1", mlflow_server.uri)
    assert found == StageResult.of(place, done, cached=True)
    with pytest.raises(ConfigError, match="was replaced by a later attempt"):
        addressed(store, "models:/lost/1", mlflow_server.uri)
    with pytest.raises(ConfigError, match=r"models:/lost/2.*was not found in MLflow"):
        addressed(store, "models:/lost/2", mlflow_server.uri)
