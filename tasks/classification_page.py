"""Stage `classification-page`: the page of forces between classes and of learning paths."""

from __future__ import annotations

from pydantic import Field

from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.chapter_page import ChapterPageConfig, publish
from tasks.shared.page_helpers import input_folder

PATHS = "learning-paths"


class ClassificationPageConfig(ChapterPageConfig):
    """Settings of the page."""

    learning_rate: float = Field(description="Learning rate that the figures of class pairs show.")
    digits: bool = Field(description="Whether the classes are the ten digits.")


def classification_page(work: Work[ClassificationPageConfig]) -> dict[str, float]:
    """Reads input `learning-paths`, if given, and every other input as a network's forces.

    Results: `classification.html`, `claims.jsonl` and `figures/`.
    """
    from dynolab.chapters.classification.page import classification_chapter
    from dynolab.chapters.inputs import read_class_forces, read_class_paths

    config = work.config
    networks = [work.input_folder(name) for name in work.inputs if name != PATHS]
    paths = input_folder(work, PATHS)
    forces = read_class_forces(networks)
    learning_paths = read_class_paths(paths) if paths else None
    return publish(
        work,
        "classification.html",
        lambda: classification_chapter(
            forces, learning_paths, learning_rate=config.learning_rate, digits=config.digits
        ),
    )


CLASSIFICATION_PAGE = Stage("classification-page", 3, classification_page)
