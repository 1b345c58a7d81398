from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dynolab.errors import ConfigError
from dynolab.hub import resolve_commit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_commit_needs_no_hub() -> None:
    assert resolve_commit("model", "owner/name", COMMIT, field="model") == COMMIT


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_an_unreachable_hub_is_named_with_the_field(kind: str) -> None:
    code = f"""
from dynolab.hub import resolve_commit
resolve_commit({kind!r}, "owner/name", field="data.hub_name")
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"},
    )
    message = ended.stderr.strip().splitlines()[-1]
    assert "ConfigError: data.hub_name = 'owner/name@main': the Hub did not resolve it" in message


def test_a_name_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="nor a valid Hub name"):
        resolve_commit("model", "a--b/..c", field="model")
