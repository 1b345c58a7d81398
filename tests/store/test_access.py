"""What stands between a user and a store is told once: field, value, remedy."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dynolab.errors import ConfigError
from dynolab.store import Store


def refusal(store: Store) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        store.check_writable()
    return caught.value


@pytest.mark.parametrize(
    ("server", "bucket", "key", "field", "value", "remedy"),
    [
        (
            "s3_server",
            "no-such-bucket",
            "tester",
            "DYNOLAB_STORE",
            "s3://no-such-bucket/lab",
            "create the bucket 'no-such-bucket'",
        ),
        (
            "strict_s3_server",
            "bucket",
            "tester",
            "AWS_ACCESS_KEY_ID",
            "tester",
            "AWS_SECRET_ACCESS_KEY",
        ),
        ("s3_server", "bucket", None, "AWS_ACCESS_KEY_ID", None, "AWS_SECRET_ACCESS_KEY"),
    ],
    ids=["a missing bucket", "wrong credentials", "no credentials"],
)
@pytest.mark.services
def test_a_server_that_refuses(
    server: str,
    bucket: str,
    key: str | None,
    field: str,
    value: str | None,
    remedy: str,
    aws_environment: None,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = request.getfixturevalue(server)
    monkeypatch.setenv("HOME", str(tmp_path))
    if key is None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    error = refusal(Store(f"s3://{bucket}/lab", cache=tmp_path, endpoint=endpoint))
    assert (error.field, error.value) == (field, value)
    assert remedy in error.remedy and "secret" not in str(error)


def test_nobody_at_the_endpoint(
    aws_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with socket.socket() as held:  # bound but not listening: connections are refused
        held.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{held.getsockname()[1]}"
        error = refusal(Store("s3://bucket/lab", cache=tmp_path, endpoint=endpoint))
    assert (error.field, error.value) == ("DYNOLAB_STORE_ENDPOINT", endpoint)


def test_the_store_needs_neither_torch_nor_a_service() -> None:
    program = (
        "import sys, dynolab.store, tasks.runtime.stage, tasks.runtime.system.settings;"
        "heavy = {'torch', 'transformers', 'mlflow', 'prefect', 's3fs', 'deepspeed'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
