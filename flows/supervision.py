"""Supervision under label noise: images → every noise level → learning speeds → page."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from dynolab.chapters.classifiers.seeds import Seeds
from dynolab.chapters.images.config import ImageConfig, resolve_images
from dynolab.chapters.supervision.speed_comparisons import SpeedConfig
from dynolab.chapters.supervision.supervision import SupervisionConfig
from dynolab.errors import ConfigError
from flows.flow import FlowParameters, Form, Name, Plan, StagedFlow
from models.vision import ClassifierName
from tasks.images import IMAGES
from tasks.runtime.pipeline import Step
from tasks.runtime.stage import Platform
from tasks.shared.chapter_page import ChapterPageConfig
from tasks.supervision import LEARNING_SPEED, SUPERVISION, SpeedJob, SupervisionJob
from tasks.supervision_page import SPEED, SUPERVISION_PAGE, level_of

Share = Annotated[float, Field(ge=0, lt=1)]


class SupervisionParameters(FlowParameters):
    """Parameters of the comparison of supervisory signals under label noise."""

    name: Name = Field("supervision", description="Name of the run, and of its page's file.")
    seeds: Seeds = Field((0, 1, 2, 3, 4), description="Seeds of weights, wrong labels and batches.")
    data: ImageConfig = ImageConfig()
    model: ClassifierName = Field("mlp", description="Network of teachers and students.")
    noise: tuple[Share, ...] = Field(
        (0.0, 0.2, 0.4, 0.6, 0.8),
        min_length=1,
        description="Shares of labels that are flipped to other classes.",
    )
    supervision: SupervisionConfig = SupervisionConfig()
    speed: SpeedConfig = SpeedConfig()

    @model_validator(mode="after")
    def _levels_differ(self) -> SupervisionParameters:
        if len(set(self.noise)) < len(self.noise):
            raise ConfigError("noise", list(self.noise), "name every level once")
        return self


def resolved_supervision(parameters: SupervisionParameters) -> SupervisionParameters:
    """Pins the images to their current content.

    **Raises** `ConfigError` for a missing source.
    """
    return parameters.model_copy(update={"data": resolve_images(parameters.data)})


def supervision_steps(parameters: SupervisionParameters) -> list[Step]:
    """The steps in order: images, every noise level, learning speeds, and the page."""
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
        settings=parameters.as_yaml,
    )
    return [
        Step("images", IMAGES, parameters.data),
        *measured,
        Step(
            "supervision-page", SUPERVISION_PAGE, page, {step.name: step.name for step in measured}
        ),
    ]


def plan(parameters: SupervisionParameters, _: Platform) -> Plan:
    """Plans the images, every noise level, learning speeds, and the page."""
    known = resolved_supervision(parameters)
    return Plan(known, supervision_steps(known))


FLOW = StagedFlow(
    "supervision",
    SupervisionParameters,
    plan,
    page="supervision-page",
    file="supervision.html",
    forms={
        "supervision": Form(
            "What to teach when labels are wrong, and which kind of example is learned faster.",
            {
                "seeds": "seeds",
                "data_source": "data.source",
                "data_path": "data.path",
                "hub_name": "data.hub_name",
                "images": "data.train",
                "noise": "noise",
                "model": "model",
                "epochs": "supervision.training.epochs",
                "temperature": "supervision.temperature",
            },
        )
    },
)
