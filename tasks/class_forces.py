"""Stage `class-forces`: trains a network at several learning rates and seeds, measures forces."""

from __future__ import annotations

from functools import partial

import numpy as np

from dynolab.chapters.classification.force_study import ForceStudyConfig
from dynolab.chapters.classifiers.seeds import Seeds
from models.vision import ClassifierName
from tasks.images import IMAGES_FILE
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work


class ClassForcesJob(ForceStudyConfig):
    """One network at all learning rates and seeds."""

    model: ClassifierName = "lenet"
    seeds: Seeds = (0,)


def class_forces(work: Work[ClassForcesJob]) -> dict[str, float]:
    """Reads input `images`.

    Results: `states.jsonl`, `ranks.jsonl`, `influence.jsonl` and `diverged.jsonl`.
    """
    from dynolab import distributed
    from dynolab.chapters.classification.force_study import study_forces
    from dynolab.chapters.images.images import read_images
    from models.vision import build_classifier

    config, device = work.config, distributed.device()
    data = read_images(work.input_folder("images") / IMAGES_FILE).to(device)
    build = partial(build_classifier, config.model, device=device)
    with work.shown():
        forces = study_forces(build, config.model, data, config, config.seeds)
        work.write_tables(
            states=forces.states,
            ranks=forces.ranks,
            influence=forces.influences,
            diverged=forces.diverged,
        )
    last = max(state.epoch for state in forces.states)
    rate = config.training.learning_rate
    main = [state for state in forces.states if state.learning_rate == rate]
    accuracies = [state.accuracy for state in main if state.epoch == last]
    return work.log_metrics(
        {
            f"{config.model}/accuracy": float(np.mean(accuracies)),
            f"{config.model}/unexplained": float(np.nanmean([state.unexplained for state in main])),
        }
    )


CLASS_FORCES = Stage("class-forces", 2, class_forces)
