"""The last stage of a chapter: its page, from what the other stages measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict

from tasks.runtime.work import Work

if TYPE_CHECKING:
    from dynolab.report.pages.chapter import Chapter


class ChapterPageConfig(BaseModel):
    """What a page says of the run itself; `settings` are the flow's, as YAML."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    settings: str


PageConfig = TypeVar("PageConfig", bound=ChapterPageConfig)


def publish(work: Work[PageConfig], file: str, made: Callable[[], Chapter]) -> dict[str, float]:
    """Writes the chapter that `made` gives as the stage's result, and to MLflow.

    Settings and stages are filled in here. **Returns** how many claims end how, and the inputs'
    numbers.
    """
    from dynolab.report.inputs.study import StageFacts
    from dynolab.report.pages.chapter import write_chapter

    config = work.config
    with work.shown():
        stages = [
            StageFacts(
                stage=name,
                key=source.key,
                seconds=source.metrics.get("seconds"),
                mlflow_run_id=source.mlflow_run_id,
            )
            for name, source in work.inputs.items()
        ]
        chapter = replace(made(), name=config.name, settings=config.settings, stages=stages)
        claims = write_chapter(chapter, work.output, file)
    for found in (work.output / file, work.output / "claims.jsonl"):
        work.tracker.log_artifact(found, "report")
    for figure in sorted((work.output / "figures").glob("*.html")):
        work.tracker.log_artifact(figure, "plots")
    return claims | {
        name: value
        for source in work.inputs.values()
        for name, value in source.metrics.items()
        if name != "seconds"
    }
