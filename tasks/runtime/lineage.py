"""Lineage of a result: its inputs, their inputs, back to the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dynolab.store import Manifest, Store
from tasks.runtime.work import StageResult


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


def _by_digest(store: Store) -> dict[str, StageResult]:
    results = {}
    for stage in store.files.children("stages"):
        for key in store.files.children(f"stages/{stage}"):
            place = store.place(stage, key)
            if (committed := place.committed()) is not None:
                digest = committed.manifest.digest
                results[digest] = StageResult.of(place, committed, cached=True)
    return results
