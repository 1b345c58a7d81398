"""Stage `simplicity-page`: the page of the chapter on simplicity."""

from __future__ import annotations

from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.chapter_page import ChapterPageConfig, publish


def simplicity_page(work: Work[ChapterPageConfig]) -> dict[str, float]:
    """Reads one result of stage `mappings` for every space, in their order.

    Results: `simplicity.html`, `claims.jsonl` and `figures/`.
    """
    from dynolab.chapters.inputs import read_simplicity
    from dynolab.chapters.simplicity.page import simplicity_chapter

    rows = read_simplicity(map(work.input_folder, work.inputs))
    return publish(work, "simplicity.html", lambda: simplicity_chapter(rows))


SIMPLICITY_PAGE = Stage("simplicity-page", 2, simplicity_page)
