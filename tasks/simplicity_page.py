"""Stage `simplicity-page`: the page of the chapter on simplicity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.chapter import ChapterPageConfig, publish
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work

if TYPE_CHECKING:
    from dynolab.report.chapters.page import Chapter


def simplicity_page(work: Work[ChapterPageConfig]) -> dict[str, float]:
    """Reads one result of stage `mappings` for every space, in their order.

    Results: `simplicity.html`, `claims.jsonl` and `figures/`.
    """
    return publish(work, "simplicity.html", lambda: _chapter(work))


def _chapter(work: Work[ChapterPageConfig]) -> Chapter:
    from dynolab.report.chapters.simplicity import simplicity_chapter
    from dynolab.report.inputs.chapters import read_simplicity

    return simplicity_chapter(read_simplicity(map(work.input_folder, work.inputs)))


SIMPLICITY_PAGE = Stage("simplicity-page", 2, simplicity_page)
