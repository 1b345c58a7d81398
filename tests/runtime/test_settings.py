"""Settings come from the environment, and a wrong one is named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dynolab.errors import ConfigError
from tasks.runtime.system.secret_files import holds_secret, signing_key
from tasks.runtime.system.settings import Settings


def test_defaults_lie_under_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_environment({"DYNOLAB_STORE": "", "MLFLOW_TRACKING_URI": ""})
    home = tmp_path / ".dynolab"
    assert settings == Settings(home=home, store=f"file://{home}/store")
    assert not home.exists()


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
    assert settings == Settings(
        home=tmp_path,
        store="s3://bucket/lab",
        store_endpoint="http://127.0.0.1:9000",
        mlflow_tracking_uri="https://mlflow.example",
        prefect_api_url="http://prefect:4200/api",
    )
    assert "hush" not in settings.model_dump_json()


@pytest.mark.parametrize(
    "name", ["DYNOLAB_STORE_ENDPOINT", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"]
)
@pytest.mark.parametrize(
    "value", ["localhost:9000", "http://", "sqlite:///x.db", "/tmp/runs", "mlflow", "http://[::1"]
)
def test_an_address_that_is_none(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match="give an address like") as caught:
        Settings.from_environment({name: value})
    assert (caught.value.field, caught.value.value) == (name, value)


@pytest.mark.parametrize(
    ("client", "remedy"),
    [("tensorboard", "choose one of wandb"), ("wandb", "pip install .*trackers")],
)
def test_a_client_that_is_unknown_or_not_installed(
    client: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()  # W&B's runs
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(ConfigError, match=remedy) as caught:
        Settings.from_environment({"DYNOLAB_REPORT_TO": f" {client},"})
    assert (caught.value.field, caught.value.value) == ("DYNOLAB_REPORT_TO", client)


@pytest.mark.parametrize("name", ["DYNOLAB_STORE", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"])
@pytest.mark.parametrize(
    "value", ["http://ada:hush@host", "http://host/?token=hush", "s3://a#hush"]
)
def test_an_address_with_a_login_is_refused_and_not_shown(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match="holds a login") as caught:
        Settings.from_environment({name: value})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ada:hush@host/sweeps",
        "postgresql://host/sweeps?user=ada&password=hush",
        "https://host/data?token=hush",
        "https://host/data#access_token=hush",
        "//ada:hush@host/data",
        "ada:hush@host:5432",
        "jdbc:postgresql://host/sweeps;pwd=hush",
        "host=db password = hush",
        '{"api_key": "hush"}',
        "AccountName=a;AccountKey=hush",
    ],
)
def test_a_text_that_may_hold_a_secret(text: str) -> None:
    assert holds_secret(text)


@pytest.mark.parametrize("name", ["DYNOLAB_KEY", "DYNOLAB_PASSWORD", "DYNOLAB_API_TOKENS"])
def test_a_name_that_speaks_of_a_secret(name: str) -> None:
    assert holds_secret("hush", name)


@pytest.mark.parametrize(
    "text", ["/data/pairs.jsonl", "s3://bucket/a/b", "/home/key/@monkey", "a@b.example", "design=3"]
)
def test_what_holds_no_secret(text: str) -> None:
    assert not holds_secret(text, "DYNOLAB_TOKENIZER")


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(ConfigError, match="DYNOLAB_HOME"):
        Settings.from_environment({"DYNOLAB_HOME": str(tmp_path / "home")})


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "9" * 5000, "٣"])
def test_a_number_of_states_that_is_none(value: str) -> None:
    with pytest.raises(ConfigError, match=r"DYNOLAB_RESUME_STATES = .*1 or more"):
        Settings.from_environment({"DYNOLAB_RESUME_STATES": value})


@pytest.mark.parametrize("value", ["secret", "ab" * 31, "xy" * 32, "ab " * 5])
def test_a_key_that_is_none_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(ConfigError, match="openssl rand") as caught:
        Settings.from_environment({"DYNOLAB_KEY": value})
    assert value not in str(caught.value)


def test_a_home_makes_its_key_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as together:
        keys = set(together.map(lambda _: signing_key(tmp_path / "home", {}), range(16)))
    assert len(keys) == 1
    (file,) = (tmp_path / "home").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert signing_key(tmp_path / "home", {"DYNOLAB_KEY": "ab" * 32}) == b"\xab" * 32
    file.write_text("")
    with pytest.raises(ConfigError, match="delete that file"):
        signing_key(tmp_path / "home", {})
