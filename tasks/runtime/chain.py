"""A study's stages and which stage's result each one reads: to be run, or only planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from tasks.runtime.stage import Platform, Stage, lookup, plan_key
from tasks.runtime.work import StageResult


@dataclass(frozen=True)
class Step:
    """One stage of a study: its config, and by input name the step whose result it reads."""

    name: str
    stage: Stage[Any]
    config: BaseModel
    inputs: Mapping[str, str] = field(default_factory=dict)

    def sources(self, results: Mapping[str, StageResult]) -> dict[str, StageResult]:
        """The results of the steps that this one reads."""
        return {name: results[step] for name, step in self.inputs.items()}


@dataclass(frozen=True)
class Planned:
    """What running a step would mean now; the key is unknown behind a step that is not done."""

    step: str
    state: Literal["cached", "to run"]
    key: str | None


def plan(steps: Sequence[Step], platform: Platform) -> Iterator[Planned]:
    """Says for every step, in order, whether its result is committed already."""
    results: dict[str, StageResult] = {}
    for step in steps:
        if not set(step.inputs.values()) <= set(results):
            yield Planned(step.name, "to run", None)
            continue
        sources = step.sources(results)
        key = plan_key(step.stage, step.config, sources)
        if (found := lookup(step.stage, key, platform)) is not None:
            results[step.name] = found
        yield Planned(step.name, "cached" if found else "to run", key)
