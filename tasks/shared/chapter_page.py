"""The last stage of a chapter: writes its page from the results of the other stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from tasks.runtime.work import Work
from tasks.shared.page_helpers import PageConfig, input_metrics, send_page, stage_facts

if TYPE_CHECKING:
    from dynolab.chapters.page import Chapter


class ChapterPageConfig(PageConfig):
    """Facts about the run that a chapter's page shows."""


ChapterConfig = TypeVar("ChapterConfig", bound=ChapterPageConfig)


def publish(work: Work[ChapterConfig], file: str, build: Callable[[], Chapter]) -> dict[str, float]:
    """Writes the page of the chapter that `build` returns as `file`, and sends it to MLflow.

    Fills in the chapter's settings and stages. **Returns** the number of claims by outcome, and the
    inputs' metrics.
    """
    from dynolab.chapters.page import write_chapter

    config = work.config
    with work.shown():
        chapter = replace(
            build(), name=config.name, settings=config.settings, stages=stage_facts(work)
        )
        claims = write_chapter(chapter, work.output, file)
    send_page(work)
    return claims | input_metrics(work)
