"""Results that a setting names."""

from __future__ import annotations

from dynolab.store import Store
from dynolab.store.find import find_result
from tasks.runtime.work import StageResult


def existing_result(store: Store, field: str, reference: str) -> StageResult:
    """The committed result that a reference names, as `find_result` finds it."""
    place, committed = find_result(store, field, reference)
    return StageResult.of(place, committed, cached=True)
