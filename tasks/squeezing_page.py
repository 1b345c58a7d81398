"""Stage `squeezing-page`: the page of the chapter on squeezing."""

from __future__ import annotations

from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.chapter_page import ChapterPageConfig, publish
from tasks.shared.page_helpers import input_folder


def squeezing_page(work: Work[ChapterPageConfig]) -> dict[str, float]:
    """Reads inputs `softmax` and, if a language model was measured, `push`.

    Results: `squeezing.html`, `claims.jsonl` and `figures/`.
    """
    from dynolab.chapters.inputs import read_squeezing_rows
    from dynolab.chapters.squeezing.page import squeezing_chapter

    rows = read_squeezing_rows(work.input_folder("softmax"), input_folder(work, "push"))
    return publish(work, "squeezing.html", lambda: squeezing_chapter(rows))


SQUEEZING_PAGE = Stage("squeezing-page", 3, squeezing_page)
