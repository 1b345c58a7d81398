"""This machine's folders and server addresses, read from the environment alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from dynolab.errors import ConfigError, check_installed, check_known
from tasks.runtime.system.child import GRACE
from tasks.runtime.system.secret_files import check_key, holds_secret

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_CLIENTS = ("wandb", "trackio")


class Settings(BaseModel):
    """Addresses and folders of one process.

    | variable | meaning | default |
    |---|---|---|
    | DYNOLAB_HOME | home folder | `./.dynolab` |
    | DYNOLAB_STORE | object store, `file:///…` or `s3://bucket/prefix` | the home's `store/` |
    | DYNOLAB_STORE_ENDPOINT | S3 server other than Amazon's | none |
    | MLFLOW_TRACKING_URI | MLflow server | none |
    | PREFECT_API_URL | Prefect server | none |
    | DYNOLAB_HOSTS | number of hosts that share a training's ranks | 1 |
    | DYNOLAB_RENDEZVOUS | `host:port` of this host where the others' torchrun waits | none |
    | DYNOLAB_RESUME_STATES | how many of a training's newest resume states are kept | 2 |
    | DYNOLAB_GRACE_SECONDS | how long a training has to save its state after SIGTERM | 0 |
    | DYNOLAB_REPORT_TO | clients that get metrics of trainings, as `wandb,trackio` | none |
    | DYNOLAB_KEY | key that signs resume states, in hex | the home's `key` |

    S3 credentials come from the usual AWS_* variables; this class holds neither them nor the key.
    """

    model_config = ConfigDict(frozen=True)

    home: Path
    store: str
    store_endpoint: str | None = None
    mlflow_tracking_uri: str | None = None
    prefect_api_url: str | None = None
    hosts: int = 1
    rendezvous: str | None = None
    resume_states: int = 2
    grace_seconds: int = 0
    report_to: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the variables above; an empty one counts as unset.

        Raises ConfigError for an invalid address or key, for an address with a login, and for a
        client that is unknown or not installed.
        """
        check_key(environment)
        store = environment.get("DYNOLAB_STORE")
        if store and not store.startswith("file:"):  # a path may hold any character
            _check_no_login("DYNOLAB_STORE", store)
        hosts = _count(environment, "DYNOLAB_HOSTS")
        rendezvous = _host_and_port(environment, "DYNOLAB_RENDEZVOUS")
        if hosts > 1 and rendezvous is None:
            raise ConfigError(
                "DYNOLAB_RENDEZVOUS",
                None,
                f"is required for {hosts} hosts; set an address of this host that the others can "
                "reach and a free port, like 10.0.0.1:29400",
            )
        home = Path(environment.get("DYNOLAB_HOME") or ".dynolab").expanduser().resolve()
        if home.exists() and not home.is_dir():
            raise ConfigError("DYNOLAB_HOME", str(home), "is a file; name a folder")
        return cls(
            home=home,
            store=store or f"file://{home}/store",
            store_endpoint=_http(environment, "DYNOLAB_STORE_ENDPOINT"),
            mlflow_tracking_uri=_http(environment, "MLFLOW_TRACKING_URI"),
            prefect_api_url=_http(environment, "PREFECT_API_URL"),
            hosts=hosts,
            rendezvous=rendezvous,
            resume_states=_count(environment, "DYNOLAB_RESUME_STATES", 2),
            grace_seconds=_count(environment, GRACE) if environment.get(GRACE) else 0,
            report_to=_clients(environment, "DYNOLAB_REPORT_TO"),
        )

    @property
    def scratch(self) -> Path:
        """Work folders of running stages."""
        return self.home / "scratch"

    @property
    def reports(self) -> Path:
        """Pages, by the names of their runs."""
        return self.home / "reports"

    @property
    def cache(self) -> Path:
        """Verified local copies of a remote store's files, and files that can be made again."""
        return self.home / "cache"

    @property
    def outbox(self) -> Path:
        """Runs not yet sent to MLflow, a folder each."""
        return self.home / "outbox"


def _http(environment: Mapping[str, str], name: str) -> str | None:
    value = environment.get(name) or None
    if value is not None:
        _check_no_login(name, value)
        try:
            parts = urlsplit(value)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:  # such as http://[, which urlsplit refuses
            is_address = False
        if not is_address:
            raise ConfigError(name, value, "give an address like http://127.0.0.1:5000")
    return value


def _check_no_login(name: str, address: str) -> None:
    """Raise for an address with a login: addresses appear in manifests, reports and messages."""
    if holds_secret(address):
        raise ConfigError(
            name,
            "…",
            "holds a login or other settings, and addresses are shown; give the address alone, and "
            "set logins in AWS_*, MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "PREFECT_API_AUTH_STRING",
        )


def _count(environment: Mapping[str, str], name: str, default: int = 1) -> int:
    value = environment.get(name) or str(default)
    # 1 to 999999999, with or without zeros before it.
    if not re.fullmatch("0*[1-9][0-9]{0,8}", value):
        raise ConfigError(name, value, "give a number, 1 or more")
    return int(value)


def _clients(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    clients = tuple(filter(None, map(str.strip, environment.get(name, "").split(","))))
    for client in clients:
        check_known(name, client, _CLIENTS)
        check_installed(name, client, "trackers")
    return clients


def _host_and_port(environment: Mapping[str, str], name: str) -> str | None:
    value = environment.get(name) or None
    if value is not None:
        host, _, port = value.rpartition(":")
        number = int(port) if port.isascii() and port.isdigit() else 0
        if not _HOST.fullmatch(host) or not 0 < number < 2**16:
            raise ConfigError(name, value, "give an address and a port, like 10.0.0.1:29400")
    return value
