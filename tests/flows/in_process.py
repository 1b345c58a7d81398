"""A store in this process, and flows that are planned and run on it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from dynolab.data.rows import read_rows
from dynolab.store import Store
from dynolab.training.step_record import RecordCache, StepRecord
from flows.flow import Parameters, Plan, StagedFlow, Step, plan
from flows.parameters.validation import validated
from tasks.runtime.stage import Platform, run_stage
from tasks.runtime.system.secret_files import own_folder
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.progress import PlainLines, Progress
from tasks.runtime.work import StageResult
from tasks.training import RECORDS
from tests.runtime.doubles import MemoryTracking

Row = TypeVar("Row", bound=BaseModel)


class InProcess:
    """The platform, and what was run on it."""

    def __init__(self, home: Path) -> None:
        settings = Settings(home=own_folder(home), store=f"file://{home}/store")
        self.tracking = MemoryTracking()
        self.platform = Platform(
            settings,
            Store(settings.store, cache=settings.cache),
            lambda: self.tracking,
            lambda: Progress(PlainLines(StringIO())),
        )

    def plan(self, flow: StagedFlow[Parameters], settings: Mapping[str, Any]) -> Plan:
        """What the flow runs with these settings."""
        return flow.plan(validated(flow.parameters, settings), self.platform)

    def run_steps(
        self, steps: Sequence[Step], existing: Mapping[str, StageResult] | None = None
    ) -> dict[str, StageResult]:
        """All steps in order; the results by step, `existing` ones among them."""
        results = dict(existing or {})
        for step in steps:
            results[step.name] = run_stage(
                step.stage, step.config, step.sources(results), self.platform, name=step.name
            )
        return results

    def run_plan(self, planned: Plan) -> dict[str, StageResult]:
        """All steps of a plan; the results by step."""
        return self.run_steps(planned.steps, planned.existing)

    def states(self, planned: Plan) -> dict[str, str]:
        """Step → whether it is to run or cached."""
        steps = plan(planned.steps, self.platform, planned.existing)
        return {planned_step.step: planned_step.state for planned_step in steps}

    def to_run(self, planned: Plan) -> set[str]:
        """The steps of which nothing is committed."""
        return {step for step, state in self.states(planned).items() if state != "cached"}

    def folder(self, result: StageResult, subfolder: str | None = None) -> Path:
        return self.platform.store.folder(result.address, result.digest, subfolder)

    def record(self, result: StageResult, step: int) -> StepRecord:
        """A recorded step, with the tensors that this machine's cache has."""
        cache = RecordCache(self.platform.settings.cache / RECORDS)
        record = cache.load(self.folder(result, f"forces/step-{step:08d}"))
        assert record is not None
        return record

    def rows(self, result: StageResult, file: str, kind: type[Row]) -> list[Row]:
        """All rows of one of a result's files."""
        return list(read_rows(self.folder(result) / file, kind))

    def text(self, result: StageResult, file: str) -> str:
        """The content of one of a result's files."""
        return (self.folder(result) / file).read_text()

    def summary(self, result: StageResult) -> dict[str, Any]:
        """The summary beside a page."""
        return json.loads(self.text(result, "summary.json"))


def step_names(planned: Plan) -> list[str]:
    return [step.name for step in planned.steps]


def short(result: StageResult) -> str:
    """A result as people name it."""
    return f"{result.stage}/{result.key[:12]}"
