"""Stage `transfer-page`: the page of task heads."""

from __future__ import annotations

from tasks.chapter import ChapterPageConfig, publish
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work


def transfer_page(work: Work[ChapterPageConfig]) -> dict[str, float]:
    """Reads every input as a pair of tasks.

    Results: `transfer.html`, `claims.jsonl` and `figures/`.
    """
    from dynolab.data.rows import read_rows
    from dynolab.report.pages.transfer import transfer_chapter
    from dynolab.results.transfer import TransferRow

    rows = [
        row
        for name in work.inputs
        for row in read_rows(work.input_folder(name) / "transfer.jsonl", TransferRow)
    ]
    return publish(work, "transfer.html", lambda: transfer_chapter(rows))


TRANSFER_PAGE = Stage("transfer-page", 1, transfer_page)
