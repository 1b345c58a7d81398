"""Stage `supervision-page`: the page of supervision under label noise."""

from __future__ import annotations

from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.chapter_page import ChapterPageConfig, publish

SPEED = "learning-speed"


def level_of(noise: float) -> str:
    """Name of the step of a noise level."""
    return f"noise-{100 * noise:g}"


def supervision_page(work: Work[ChapterPageConfig]) -> dict[str, float]:
    """Reads input `learning-speed`, and every other input as a noise level.

    Results: `supervision.html`, `claims.jsonl` and `figures/`.
    """
    from dynolab.chapters.inputs import read_supervision
    from dynolab.chapters.supervision.page import supervision_chapter

    levels = [work.input_folder(name) for name in work.inputs if name != SPEED]
    rows = read_supervision(levels, work.input_folder(SPEED))
    return publish(work, "supervision.html", lambda: supervision_chapter(rows))


SUPERVISION_PAGE = Stage("supervision-page", 3, supervision_page)
