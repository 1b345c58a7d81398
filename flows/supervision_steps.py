"""Which stages the flow `supervision` has, in which order, and what each reads."""

from __future__ import annotations

import yaml

from flows.supervision_parameters import SupervisionParameters
from tasks.chapter import ChapterPageConfig
from tasks.images import IMAGES
from tasks.runtime.chain import Step
from tasks.supervision import LEARNING_SPEED, SUPERVISION, SpeedJob, SupervisionJob
from tasks.supervision_page import SPEED, SUPERVISION_PAGE, level_of


def supervision_steps(parameters: SupervisionParameters) -> list[Step]:
    """Images, every noise level, learning speeds, and the page."""
    shared = {"model": parameters.model, "seeds": parameters.seeds}
    reads = {"images": "images"}
    levels = [
        Step(
            level_of(noise),
            SUPERVISION,
            SupervisionJob(**dict(parameters.supervision), **shared, noise=noise),
            reads,
        )
        for noise in parameters.noise
    ]
    measured = [
        *levels,
        Step(SPEED, LEARNING_SPEED, SpeedJob(**dict(parameters.speed), **shared), reads),
    ]
    page = ChapterPageConfig(
        name=parameters.name,
        settings=yaml.safe_dump(parameters.model_dump(mode="json"), sort_keys=False),
    )
    return [
        Step("images", IMAGES, parameters.data),
        *measured,
        Step("supervision-page", SUPERVISION_PAGE, page, {one.name: one.name for one in measured}),
    ]
