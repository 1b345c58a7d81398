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


ADDRESSES = ("DYNOLAB_STORE_ENDPOINT", "MLFLOW_TRACKING_URI", "PREFECT_API_URL")
NO_ADDRESS = ("localhost:9000", "http://", "sqlite:///x.db", "/tmp/runs", "mlflow", "http://[::1")
NO_NUMBER = ("0", "-1", "two", "1.5", "9" * 5000, "٣")
NO_PLACE = ("10.0.0.1", "10.0.0.1:99999", "http://10.0.0.1:29400")
NO_KEY = ("secret", "ab" * 31, "xy" * 32, "ab " * 5)


@pytest.mark.parametrize(
    ("name", "values", "remedy"),
    [
        *((name, NO_ADDRESS, "give an address like") for name in ADDRESSES),
        ("DYNOLAB_RENDEZVOUS", NO_PLACE, "port"),
        ("DYNOLAB_RESUME_STATES", NO_NUMBER, "1 or more"),
        ("DYNOLAB_HOSTS", ("0", "two"), "1 or more"),
        ("DYNOLAB_KEY", NO_KEY, "openssl rand"),
        ("DYNOLAB_HOME", (__file__,), "folder"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_remedy_and_no_key_is_shown(
    name: str, values: tuple[str, ...], remedy: str
) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=f"{name}.*{remedy}") as caught:
            Settings.from_environment({name: value})
        assert name != "DYNOLAB_KEY" or value not in str(caught.value)


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
    for name in ("DYNOLAB_KEY", "DYNOLAB_PASSWORD", "DYNOLAB_API_TOKENS"):
        assert holds_secret("hush", name)


@pytest.mark.parametrize(
    "text", ["/data/pairs.jsonl", "s3://bucket/a/b", "/home/key/@monkey", "a@b.example", "design=3"]
)
def test_what_holds_no_secret(text: str) -> None:
    assert not holds_secret(text, "DYNOLAB_TOKENIZER")


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
