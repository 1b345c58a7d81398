"""A store in this process, and a chapter's flow run on it stage by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

from dynolab.store import Store
from tasks.runtime.pipeline import Step
from tasks.runtime.stage import Platform, run_stage
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.progress import PlainLines, Progress
from tasks.runtime.work import StageResult
from tests.runtime.doubles import MemoryTracking


class Chapters:
    """The platform, and what was run on it."""

    def __init__(self, home: Path) -> None:
        settings = Settings(home=home, store=f"file://{home}/store")
        self.tracking = MemoryTracking()
        self.platform = Platform(
            settings,
            Store(settings.store, cache=settings.cache),
            lambda: self.tracking,
            lambda: Progress(PlainLines(StringIO())),
        )

    def run(self, steps: Sequence[Step]) -> Mapping[str, StageResult]:
        """All steps in order; the results by step."""
        results: dict[str, StageResult] = {}
        for step in steps:
            results[step.name] = run_stage(
                step.stage, step.config, step.sources(results), self.platform, name=step.name
            )
        return results

    def folder(self, result: StageResult) -> Path:
        return self.platform.store.folder(result.address, result.digest)
