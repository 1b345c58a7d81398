"""A study's steps: which results each one reads, and which are in the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from dynolab.store import Store
from dynolab.store.find import find_result
from tasks.runtime.stage import Platform, Stage, lookup, plan_key
from tasks.runtime.work import StageResult


@dataclass(frozen=True)
class Step:
    """One stage of a study: its config, and input name → step whose result it reads."""

    name: str
    stage: Stage[Any]
    config: BaseModel
    inputs: Mapping[str, str] = field(default_factory=dict)

    def sources(self, results: Mapping[str, StageResult]) -> dict[str, StageResult]:
        """Input name → result that this step reads."""
        return {name: results[step] for name, step in self.inputs.items()}


@dataclass(frozen=True)
class Planned:
    """Whether a step is cached or would run; its key is None until its inputs are committed."""

    step: str
    state: Literal["cached", "to run"]
    key: str | None


def plan(
    steps: Sequence[Step], platform: Platform, given: Mapping[str, StageResult] | None = None
) -> Iterator[Planned]:
    """Yield for every step, in order, whether its result is already committed.

    `given`: results that no step computes, under the names by which steps read them.
    """
    for planned, _ in _walk(steps, platform, given or {}):
        yield planned


def finished(steps: Sequence[Step], platform: Platform) -> dict[str, StageResult]:
    """Step name → result, of the steps whose result is committed."""
    walked = _walk(steps, platform, {})
    return {planned.step: result for planned, result in walked if result is not None}


def _walk(
    steps: Sequence[Step], platform: Platform, given: Mapping[str, StageResult]
) -> Iterator[tuple[Planned, StageResult | None]]:
    results = dict(given)
    for step in steps:
        if not set(step.inputs.values()) <= set(results):
            yield Planned(step.name, "to run", None), None
            continue
        key = plan_key(step.stage, step.config, step.sources(results))
        if (result := lookup(step.stage, key, platform)) is not None:
            results[step.name] = result
        yield Planned(step.name, "cached" if result else "to run", key), result


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
                results[committed.manifest.digest] = StageResult.of(place, committed, cached=True)
    return results
