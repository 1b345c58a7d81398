from __future__ import annotations

import httpx
import pytest
from huggingface_hub import HfApi

from dynolab.errors import ConfigError
from dynolab.hub import resolve_commit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_commit_needs_no_hub() -> None:
    assert resolve_commit("model", "owner/name", COMMIT, field="model") == COMMIT


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_an_unreachable_hub_is_named_with_the_field(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise httpx.ConnectError("no route")

    monkeypatch.setattr(HfApi, f"{kind}_info", unreachable)
    with pytest.raises(ConfigError, match=r"data\.hub_name = 'owner/name@main'.*ConnectError"):
        resolve_commit(kind, "owner/name", field="data.hub_name")


def test_a_name_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="no name that the Hub can have"):
        resolve_commit("model", "a--b/..c", field="model")
