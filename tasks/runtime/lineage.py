"""Lineage of a result: its inputs, their inputs, back to the data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dynolab.errors import ConfigError
from dynolab.store import Manifest, Store
from tasks.runtime.existing_results import existing_result
from tasks.runtime.stage import ADDRESS_TAG
from tasks.runtime.track.client import connect
from tasks.runtime.work import StageResult

_RUN = re.compile(r"[0-9a-f]{32}")
_MODEL = re.compile(r"models:/(?P<name>[^/:]+)/(?P<version>[0-9]+)")


@dataclass(frozen=True)
class Ancestor:
    """A result in the lineage of another, with its manifest.

    `role` is the input's name; `result` and `manifest` are None if the store no longer holds it.
    """

    role: str
    depth: int
    digest: str
    result: StageResult | None
    manifest: Manifest | None

    @property
    def sources(self) -> dict[str, Any]:
        """The settings that say where data and weights came from: paths, names, revisions."""
        config = self.manifest.config if self.manifest else {}
        return {name: config[name] for name in _SOURCES if config.get(name) is not None}


_SOURCES = ("source", "path", "hub_name", "revision", "seed")


def lineage(store: Store, result: StageResult) -> Iterator[Ancestor]:
    """The result and all its ancestors, depth first, each before its inputs.

    A result that several others read is listed for each, its inputs only the first time.
    """
    known = _by_digest(store)
    seen: set[str] = set()

    def walk(role: str, depth: int, digest: str) -> Iterator[Ancestor]:
        ancestor = known.get(digest)
        manifest = store.manifest(ancestor.address, digest) if ancestor else None
        yield Ancestor(role, depth, digest, ancestor, manifest)
        if manifest is None or digest in seen:
            return
        seen.add(digest)
        for name, parent in manifest.parents.items():
            yield from walk(name, depth + 1, parent)

    known[result.digest] = result
    yield from walk("", 0, result.digest)


def addressed(store: Store, reference: str, mlflow_uri: str | None) -> StageResult:
    """Find a result by address, `<stage>/<key>`, MLflow run id or `models:/<name>/<version>`.

    **Raises** `ConfigError` if there is no such result.
    """
    model = _MODEL.fullmatch(reference)
    if not model and not _RUN.fullmatch(reference):
        if reference.startswith("models:"):
            raise ConfigError("address", reference, "write it as models:/<name>/<version number>")
        return existing_result(store, "address", reference)
    if mlflow_uri is None:
        raise ConfigError("address", reference, "needs MLflow; start the servers (make up)")
    client = connect(mlflow_uri)
    from mlflow.exceptions import MlflowException

    try:
        if model:
            tags = client.get_model_version(model["name"], model["version"]).tags
        else:
            tags = client.get_run(reference).data.tags
    except MlflowException as error:
        raise ConfigError("address", reference, f"was not found in MLflow: {error}") from error
    if ADDRESS_TAG not in tags:
        raise ConfigError(
            "address", reference, "was not made by a stage; name a result or a stage's run"
        )
    return existing_result(store, "address", tags[ADDRESS_TAG])


def _by_digest(store: Store) -> dict[str, StageResult]:
    results = {}
    for stage in store.files.children("stages"):
        for key in store.files.children(f"stages/{stage}"):
            place = store.place(stage, key)
            if (committed := place.committed()) is not None:
                digest = committed.manifest.digest
                results[digest] = StageResult.of(place, committed, cached=True)
    return results
