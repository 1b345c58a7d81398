"""Which stages the flow `classification` has, in which order, and what each reads."""

from __future__ import annotations

import yaml

from flows.classification_parameters import ClassificationParameters
from tasks.class_forces import CLASS_FORCES, ClassForcesJob
from tasks.classification_page import CLASSIFICATION_PAGE, PATHS, ClassificationPageConfig
from tasks.images import IMAGES
from tasks.learning_paths import LEARNING_PATHS, LearningPathsJob
from tasks.runtime.chain import Step


def classification_steps(parameters: ClassificationParameters) -> list[Step]:
    """Images, the forces of every network, learning paths by the first if wanted, and the page."""
    reads = {"images": "images"}
    measured = [
        Step(
            f"forces-{network}",
            CLASS_FORCES,
            ClassForcesJob(**dict(parameters.forces), model=network, seeds=parameters.seeds),
            reads,
        )
        for network in parameters.networks
    ]
    if parameters.paths is not None:
        job = LearningPathsJob(
            **dict(parameters.paths), model=parameters.networks[0], seeds=parameters.seeds
        )
        measured.append(Step(PATHS, LEARNING_PATHS, job, reads))
    page = ClassificationPageConfig(
        name=parameters.name,
        settings=yaml.safe_dump(parameters.model_dump(mode="json"), sort_keys=False),
        learning_rate=parameters.forces.training.learning_rate,
        digits=parameters.digits,
    )
    return [
        Step("images", IMAGES, parameters.data),
        *measured,
        Step(
            "classification-page",
            CLASSIFICATION_PAGE,
            page,
            {one.name: one.name for one in measured},
        ),
    ]
