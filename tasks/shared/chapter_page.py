"""The last stage of a chapter: its page, from what the other stages measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from tasks.runtime.work import Work
from tasks.shared.page_helpers import PageConfig, input_metrics, send_page, stage_facts

if TYPE_CHECKING:
    from dynolab.report.chapters.page import Chapter


class ChapterPageConfig(PageConfig):
    """What a chapter's page says of the run itself."""


ChapterConfig = TypeVar("ChapterConfig", bound=ChapterPageConfig)


def publish(work: Work[ChapterConfig], file: str, made: Callable[[], Chapter]) -> dict[str, float]:
    """Writes the chapter that `made` gives as the stage's result, and to MLflow.

    Settings and stages are filled in here. **Returns** how many claims end how, and the inputs'
    numbers.
    """
    from dynolab.report.chapters.page import write_chapter

    config = work.config
    with work.shown():
        chapter = replace(
            made(), name=config.name, settings=config.settings, stages=stage_facts(work)
        )
        claims = write_chapter(chapter, work.output, file)
    send_page(work)
    return claims | input_metrics(work)
