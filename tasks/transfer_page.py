"""Stage `transfer-page`: the page of task heads."""

from __future__ import annotations

from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.chapter_page import ChapterPageConfig, publish


def transfer_page(work: Work[ChapterPageConfig]) -> dict[str, float]:
    """Reads every input as the transfer between one pair of tasks.

    Results: `transfer.html`, `claims.jsonl` and `figures/`.
    """
    from dynolab.chapters.inputs import read_transfer
    from dynolab.chapters.transfer.page import transfer_chapter

    rows = read_transfer(map(work.input_folder, work.inputs))
    return publish(work, "transfer.html", lambda: transfer_chapter(rows))


TRANSFER_PAGE = Stage("transfer-page", 1, transfer_page)
