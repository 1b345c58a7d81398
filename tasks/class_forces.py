"""Stage `class-forces`: a network trained over learning rates and seeds, with its forces."""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from dynolab.chapters.classification.force_study import ForceStudyConfig
from dynolab.chapters.classifiers.seeds import Seeds
from models.vision import ClassifierName
from tasks.images import IMAGES_FILE
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work


class ClassForcesJob(ForceStudyConfig):
    """One network, all learning rates and seeds."""

    model: ClassifierName = "lenet"
    seeds: Seeds = (0,)


def class_forces(work: Work[ClassForcesJob]) -> dict[str, float]:
    """Reads input `images`.

    Results: `states.jsonl`, `ranks.jsonl`, `influence.jsonl` and `diverged.jsonl`.
    """
    from dynolab import distributed
    from dynolab.chapters.classification.force_study import study_forces
    from dynolab.data.images.images import read_images
    from dynolab.data.rows import write_rows
    from models.vision import build_classifier

    began, config, device = time.monotonic(), work.config, distributed.device()
    data = read_images(work.input_folder("images") / IMAGES_FILE).to(device)
    build = partial(build_classifier, config.model, device=device)
    with work.shown():
        found = study_forces(build, config.model, data, config, config.seeds)
        write_rows(work.output / "states.jsonl", found.states)
        write_rows(work.output / "ranks.jsonl", found.ranks)
        write_rows(work.output / "influence.jsonl", found.influences)
        write_rows(work.output / "diverged.jsonl", found.diverged)
    last = max(state.epoch for state in found.states)
    main = [state for state in found.states if state.learning_rate == config.training.learning_rate]
    metrics = {
        f"{config.model}/accuracy": np.mean([one.accuracy for one in main if one.epoch == last]),
        f"{config.model}/unexplained": np.nanmean([one.unexplained for one in main]),
    }
    found_metrics = {name: float(value) for name, value in metrics.items()}
    work.tracker.log_metrics(found_metrics, 0)
    return found_metrics | {"seconds": time.monotonic() - began}


CLASS_FORCES = Stage("class-forces", 2, class_forces)
