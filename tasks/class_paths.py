"""Stage `learning-paths`: follows the predictions of all training examples over epochs."""

from __future__ import annotations

from functools import partial

import numpy as np

from dynolab.chapters.classification.path_study import PathStudyConfig
from dynolab.chapters.classifiers.seeds import Seeds
from models.vision import ClassifierName
from tasks.images import IMAGES_FILE
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work


class LearningPathsJob(PathStudyConfig):
    """One network on the images and an mlp on the toy data, with all seeds."""

    model: ClassifierName = "lenet"
    seeds: Seeds = (0,)


def learning_paths(work: Work[LearningPathsJob]) -> dict[str, float]:
    """Reads input `images`. Results: `scores.jsonl`, `epochs.jsonl` and `paths.jsonl`."""
    from dynolab import distributed
    from dynolab.chapters.classification.path_study import study_paths
    from dynolab.chapters.images.images import read_images
    from models.vision import build_classifier

    config = work.config
    data = read_images(work.input_folder("images") / IMAGES_FILE)
    build, toy_build = (
        partial(build_classifier, name, device=distributed.device())
        for name in (config.model, "mlp")
    )
    with work.shown():
        study = study_paths(build, data, config, config.seeds, toy_build)
        work.write_tables(scores=study.scores, epochs=study.epochs, paths=study.paths)
    metrics = {
        f"paths/{dataset}/auc": float(
            np.mean([score.auc for score in study.scores if score.data == dataset])
        )
        for dataset in dict.fromkeys(score.data for score in study.scores)
    }
    return work.log_metrics(metrics)


LEARNING_PATHS = Stage("learning-paths", 2, learning_paths)
