"""Stage `supervision-page`: the page of supervision under label noise."""

from __future__ import annotations

from tasks.chapter import ChapterPageConfig, publish
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work

SPEED = "learning-speed"


def level_of(noise: float) -> str:
    """How the stage of a noise level is called."""
    return f"noise-{100 * noise:g}"


def supervision_page(work: Work[ChapterPageConfig]) -> dict[str, float]:
    """Reads input `learning-speed`, and every other one as a noise level.

    Results: `supervision.html`, `claims.jsonl` and `figures/`.
    """
    from dynolab.data.rows import read_rows
    from dynolab.report.pages.supervision import supervision_chapter
    from dynolab.results.supervision import (
        AdaptationRow,
        DetectionRow,
        SpeedRow,
        SupervisionRow,
    )

    folders = [work.input_folder(name) for name in work.inputs if name != SPEED]
    rows = [row for one in folders for row in read_rows(one / "supervision.jsonl", SupervisionRow)]
    found = [row for one in folders for row in read_rows(one / "detections.jsonl", DetectionRow)]
    speeds = list(read_rows(work.input_folder(SPEED) / "speeds.jsonl", SpeedRow))
    adaptations = list(read_rows(work.input_folder(SPEED) / "adaptations.jsonl", AdaptationRow))
    return publish(
        work,
        "supervision.html",
        lambda: supervision_chapter(rows, found, speeds, adaptations),
    )


SUPERVISION_PAGE = Stage("supervision-page", 3, supervision_page)
