"""Settings come from the environment, and a wrong one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynolab.errors import ConfigError
from tasks.runtime.settings import Settings


def test_defaults_lie_under_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_environment({"DYNOLAB_STORE": "", "MLFLOW_TRACKING_URI": ""})
    assert settings.home == tmp_path / ".dynolab"
    assert settings.store == f"file://{tmp_path}/.dynolab/store"
    assert settings.mlflow_tracking_uri is None
    assert not settings.home.exists()


def test_everything_can_be_set(tmp_path: Path) -> None:
    settings = Settings.from_environment(
        {
            "DYNOLAB_HOME": str(tmp_path),
            "DYNOLAB_STORE": "s3://bucket/lab",
            "DYNOLAB_STORE_ENDPOINT": "http://127.0.0.1:9000",
            "MLFLOW_TRACKING_URI": "https://mlflow.example",
            "PREFECT_API_URL": "http://prefect:4200/api",
            "AWS_SECRET_ACCESS_KEY": "hush",
        }
    )
    assert settings.store == "s3://bucket/lab"
    assert settings.store_endpoint == "http://127.0.0.1:9000"
    assert "hush" not in settings.model_dump_json()


@pytest.mark.parametrize(
    "name", ["DYNOLAB_STORE_ENDPOINT", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"]
)
@pytest.mark.parametrize("value", ["localhost:9000", "http://", "sqlite:///x.db"])
def test_an_address_that_is_none(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match="give an address like") as caught:
        Settings.from_environment({name: value})
    assert (caught.value.field, caught.value.value) == (name, value)


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(ConfigError, match="DYNOLAB_HOME"):
        Settings.from_environment({"DYNOLAB_HOME": str(tmp_path / "home")})
