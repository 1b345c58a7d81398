"""Where this machine keeps things and which servers it talks to: from the environment alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from dynolab.errors import ConfigError


class Settings(BaseModel):
    """Addresses and folders of one process.

    | variable | meaning | default |
    |---|---|---|
    | DYNOLAB_HOME | home folder | `./.dynolab` |
    | DYNOLAB_STORE | object store, `file:///…` or `s3://bucket/prefix` | the home's `store/` |
    | DYNOLAB_STORE_ENDPOINT | S3 server other than Amazon's | none |
    | MLFLOW_TRACKING_URI | MLflow server | none |
    | PREFECT_API_URL | Prefect server | none |

    S3 credentials come by the usual AWS_* variables and are never held here.
    """

    model_config = ConfigDict(frozen=True)

    home: Path
    store: str
    store_endpoint: str | None = None
    mlflow_tracking_uri: str | None = None
    prefect_api_url: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the variables above; an empty one counts as unset.

        Raises ConfigError for an address that is none.
        """
        home = Path(environment.get("DYNOLAB_HOME") or ".dynolab").expanduser().resolve()
        if home.exists() and not home.is_dir():
            raise ConfigError("DYNOLAB_HOME", str(home), "is a file; name a folder")
        return cls(
            home=home,
            store=environment.get("DYNOLAB_STORE") or f"file://{home}/store",
            store_endpoint=_http(environment, "DYNOLAB_STORE_ENDPOINT"),
            mlflow_tracking_uri=_http(environment, "MLFLOW_TRACKING_URI"),
            prefect_api_url=_http(environment, "PREFECT_API_URL"),
        )

    @property
    def scratch(self) -> Path:
        """Work folders of stages that run now."""
        return self.home / "scratch"

    @property
    def cache(self) -> Path:
        """Verified local copies of a remote store's files."""
        return self.home / "cache"

    @property
    def outbox(self) -> Path:
        """What has yet to be sent to MLflow."""
        return self.home / "outbox"


def _http(environment: Mapping[str, str], name: str) -> str | None:
    value = environment.get(name) or None
    if value is not None:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(name, value, "give an address like http://127.0.0.1:5000")
    return value
