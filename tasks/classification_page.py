"""Stage `classification-page`: the page of forces between classes and of learning paths."""

from __future__ import annotations

from pydantic import Field

from tasks.chapter import ChapterPageConfig, publish
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work

PATHS = "learning-paths"


class ClassificationPageConfig(ChapterPageConfig):
    """What the page shows of what was measured."""

    learning_rate: float = Field(description="The one that figures of pairs of classes show.")
    digits: bool = Field(description="Whether the classes are the ten digits.")


def classification_page(work: Work[ClassificationPageConfig]) -> dict[str, float]:
    """Reads input `learning-paths` where it is given, every other one as a network's forces.

    Results: `classification.html`, `claims.jsonl` and `figures/`.
    """
    from dynolab.chapters.classification.force_study import ForceFindings
    from dynolab.chapters.classification.path_study import PathFindings
    from dynolab.data.rows import read_rows
    from dynolab.report.pages.classification import classification_chapter
    from dynolab.results.classification import (
        ClassifierState,
        ClassInfluence,
        Divergence,
        EpochInfluence,
        ExamplePath,
        KernelRanks,
        PathScores,
    )

    config = work.config
    forces, followed = ForceFindings(), None
    for name in work.inputs:
        if name != PATHS:
            folder = work.input_folder(name)
            forces.states += read_rows(folder / "states.jsonl", ClassifierState)
            forces.ranks += read_rows(folder / "ranks.jsonl", KernelRanks)
            forces.influences += read_rows(folder / "influence.jsonl", ClassInfluence)
            forces.diverged += read_rows(folder / "diverged.jsonl", Divergence)
    if PATHS in work.inputs:
        paths = work.input_folder(PATHS)
        followed = PathFindings(
            list(read_rows(paths / "scores.jsonl", PathScores)),
            list(read_rows(paths / "epochs.jsonl", EpochInfluence)),
            list(read_rows(paths / "paths.jsonl", ExamplePath)),
        )
    return publish(
        work,
        "classification.html",
        lambda: classification_chapter(
            forces, followed, learning_rate=config.learning_rate, digits=config.digits
        ),
    )


CLASSIFICATION_PAGE = Stage("classification-page", 3, classification_page)
