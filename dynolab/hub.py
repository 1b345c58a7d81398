"""Pins names on the Hugging Face Hub to commits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from dynolab.errors import ConfigError

_unresolved: ContextVar[list[str] | None] = ContextVar("_unresolved", default=None)


@contextmanager
def names_may_stay() -> Iterator[list[str]]:
    """While open, a name that the Hub does not resolve keeps its revision; yields these names.

    For plans, which need no commits: what a stage takes depends on names alone.
    """
    names: list[str] = []
    token = _unresolved.set(names)
    try:
        yield names
    finally:
        _unresolved.reset(token)


def resolve_commit(
    kind: Literal["model", "dataset"], name: str, revision: str = "main", *, field: str
) -> str:
    """The commit that a branch or tag points to now; a commit is returned as it is, offline.

    **Raises:** `ConfigError` naming `field` if the Hub cannot be reached or has no such name.
    """
    if re.fullmatch("[0-9a-f]{40}", revision):
        return revision
    import httpx2
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    query = HfApi().model_info if kind == "model" else HfApi().dataset_info
    try:
        commit = query(name, revision=revision).sha
    except HFValidationError as error:
        raise ConfigError(
            field, name, "neither an existing folder nor a valid Hub name; give one of them"
        ) from error
    except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
        if (names := _unresolved.get()) is not None:
            names.append(name)
            return revision
        raise ConfigError(
            field,
            f"{name}@{revision}",
            f"the Hub did not resolve it ({type(error).__name__}); check the name, give a commit "
            "as revision, or use local files",
        ) from error
    if commit is None:
        raise ConfigError(
            field, f"{name}@{revision}", "the Hub returned no commit; give one as revision"
        )
    return commit
