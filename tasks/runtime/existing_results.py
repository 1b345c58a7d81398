"""Results that a setting or another result names."""

from __future__ import annotations

from dynolab.store import Store
from dynolab.store.find import find_result
from tasks.runtime.work import StageResult


def existing_result(store: Store, field: str, reference: str) -> StageResult:
    """The committed result that a reference names, as `find_result` finds it."""
    place, committed = find_result(store, field, reference)
    return StageResult.of(place, committed, cached=True)


def results_by_digest(store: Store) -> dict[str, StageResult]:
    """All committed results of a store, by their content digests."""
    results = {}
    for stage in store.files.children("stages"):
        for key in store.files.children(f"stages/{stage}"):
            place = store.place(stage, key)
            if (committed := place.committed()) is not None:
                digest = committed.manifest.digest
                results[digest] = StageResult.of(place, committed, cached=True)
    return results
