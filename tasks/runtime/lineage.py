"""What a result was made from: back through its inputs to the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dynolab.errors import ConfigError
from dynolab.store import Manifest, Store
from tasks.runtime.given import given_result
from tasks.runtime.mlflow_api import MlflowApi, MlflowRejectedError, MlflowUnreachableError
from tasks.runtime.work import StageResult

_MLFLOW_ID_LETTERS = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class Ancestor:
    """A result among those that another was made from, and what its manifest says of it.

    `role` is the input's name; `result` is None where the store no longer holds it.
    """

    role: str
    depth: int
    digest: str
    result: StageResult | None
    manifest: Manifest | None

    @property
    def sources(self) -> dict[str, Any]:
        """Where data and weights came from, by setting: paths and names with their revisions."""
        config = self.manifest.config if self.manifest else {}
        return {name: config[name] for name in _SOURCES if config.get(name) is not None}


_SOURCES = ("source", "path", "hub_name", "revision", "seed")


def lineage(store: Store, result: StageResult) -> Iterator[Ancestor]:
    """The result and everything behind it, each before its inputs, and once."""
    known = _by_digest(store)
    seen: set[str] = set()

    def walk(role: str, depth: int, digest: str) -> Iterator[Ancestor]:
        found = known.get(digest)
        manifest = store.manifest(found.address, digest) if found else None
        yield Ancestor(role, depth, digest, found, manifest)
        if manifest is None or digest in seen:
            return
        seen.add(digest)
        for name, parent in manifest.parents.items():
            yield from walk(name, depth + 1, parent)

    known[result.digest] = result
    yield from walk("", 0, result.digest)


def addressed(store: Store, reference: str, mlflow_uri: str | None) -> StageResult:
    """The result that an address, `<stage>/<key>` or an MLflow run's id stands for.

    **Raises** `ConfigError` where it stands for none.
    """
    if len(reference) == 32 and set(reference) <= _MLFLOW_ID_LETTERS:
        if mlflow_uri is None:
            raise ConfigError(
                "address", reference, "looks like an MLflow run: start the servers (make up)"
            )
        try:
            tags = MlflowApi(mlflow_uri).tags(reference)
        except (MlflowRejectedError, MlflowUnreachableError) as error:
            raise ConfigError("address", reference, f"MLflow has no such run: {error}") from error
        if "store.address" not in tags:
            raise ConfigError("address", reference, "this MLflow run is of no stage; name one")
        reference = tags["store.address"]
    return given_result(store, "address", reference)


def _by_digest(store: Store) -> dict[str, StageResult]:
    found = {}
    for stage in store.files.children("stages"):
        for key in store.files.children(f"stages/{stage}"):
            place = store.place(stage, key)
            if (one := place.committed()) is not None:
                found[one.manifest.digest] = StageResult.of(place, one, cached=True)
    return found
