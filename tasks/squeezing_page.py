"""Stage `squeezing-page`: the page of the chapter on squeezing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.chapter import ChapterPageConfig, publish
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work

if TYPE_CHECKING:
    from dynolab.report.pages.chapter import Chapter


def squeezing_page(work: Work[ChapterPageConfig]) -> dict[str, float]:
    """Reads inputs `softmax`, and `push` where a language model was looked at.

    Results: `squeezing.html`, `claims.jsonl` and `figures/`.
    """
    return publish(work, "squeezing.html", lambda: _chapter(work))


def _chapter(work: Work[ChapterPageConfig]) -> Chapter:
    from dynolab.report.pages.squeezing import read_squeezing, squeezing_chapter

    pushed = work.input_folder("push") if "push" in work.inputs else None
    return squeezing_chapter(read_squeezing(work.input_folder("softmax"), pushed))


SQUEEZING_PAGE = Stage("squeezing-page", 3, squeezing_page)
