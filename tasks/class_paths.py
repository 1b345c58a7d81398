"""Stage `learning-paths`: where the predictions of all training examples go."""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from dynolab.chapters.classification.path_study import PathStudyConfig
from dynolab.chapters.classifiers.seeds import Seeds
from models.vision import ClassifierName
from tasks.images import IMAGES_FILE
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work


class LearningPathsJob(PathStudyConfig):
    """One network on the images, an mlp on the toy, all seeds."""

    model: ClassifierName = "lenet"
    seeds: Seeds = (0,)


def learning_paths(work: Work[LearningPathsJob]) -> dict[str, float]:
    """Reads input `images`. Results: `scores.jsonl`, `epochs.jsonl` and `paths.jsonl`."""
    from dynolab import distributed
    from dynolab.chapters.classification.path_study import study_paths
    from dynolab.data.images.images import read_images
    from dynolab.data.rows import write_rows
    from models.vision import build_classifier

    began, config = time.monotonic(), work.config
    data = read_images(work.input_folder("images") / IMAGES_FILE)
    build, toy_build = (
        partial(build_classifier, name, device=distributed.device())
        for name in (config.model, "mlp")
    )
    with work.shown():
        found = study_paths(build, data, config, config.seeds, toy_build)
        write_rows(work.output / "scores.jsonl", found.scores)
        write_rows(work.output / "epochs.jsonl", found.epochs)
        write_rows(work.output / "paths.jsonl", found.paths)
    metrics = {
        f"paths/{data}/auc": float(
            np.mean([score.auc for score in found.scores if score.data == data])
        )
        for data in dict.fromkeys(score.data for score in found.scores)
    }
    work.tracker.log_metrics(metrics, 0)
    return metrics | {"seconds": time.monotonic() - began}


LEARNING_PATHS = Stage("learning-paths", 2, learning_paths)
