"""Names of the Hub pinned to commits."""

from __future__ import annotations

import re
from typing import Literal

from dynolab.errors import ConfigError


def resolve_commit(
    kind: Literal["model", "dataset"], name: str, revision: str = "main", *, field: str
) -> str:
    """The commit that a branch or tag stands at now; a commit is returned without asking the Hub.

    **Raises:** `ConfigError` naming `field` where the Hub cannot be asked or knows no such name.
    """
    if re.fullmatch("[0-9a-f]{40}", revision):
        return revision
    import httpx2
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    ask = HfApi().model_info if kind == "model" else HfApi().dataset_info
    try:
        commit = ask(name, revision=revision).sha
    except HFValidationError as error:
        remedy = "no such folder, and no name that the Hub can have; give either"
        raise ConfigError(field, name, remedy) from error
    except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
        raise ConfigError(
            field,
            f"{name}@{revision}",
            f"the Hub did not resolve it ({type(error).__name__}); check the name, give a commit "
            "as revision, or use local files",
        ) from error
    if commit is None:
        raise ConfigError(field, f"{name}@{revision}", "the Hub named no commit; give one")
    return commit
