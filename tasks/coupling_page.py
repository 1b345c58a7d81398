"""Stage `coupling-page`: the page of the chapter on the kernel's stability."""

from __future__ import annotations

from pydantic import Field

from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.chapter_page import ChapterPageConfig, publish


class CouplingPageConfig(ChapterPageConfig):
    """Facts about the run that the page shows."""

    learning_rates: tuple[float, ...] = Field(description="Of SFT, one for each kernel.")


def coupling_page(work: Work[CouplingPageConfig]) -> dict[str, float]:
    """Reads one result of stage `kernel` for every learning rate, in their order.

    Results: `coupling.html`, `claims.jsonl` and `figures/`.
    """
    from dynolab.chapters.coupling import coupling_chapter
    from dynolab.report.inputs.study import read_kernel

    kernels = [read_kernel(work.input_folder(name)) for name in work.inputs]
    by_rate = dict(zip(work.config.learning_rates, kernels, strict=True))
    return publish(work, "coupling.html", lambda: coupling_chapter(by_rate))


COUPLING_PAGE = Stage("coupling-page", 1, coupling_page)
