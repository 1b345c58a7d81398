"""Classifiers: images → forces of every network → learning paths → page."""

from __future__ import annotations

from pydantic import Field, model_validator

from dynolab.chapters.classification.force_study import ForceStudyConfig
from dynolab.chapters.classification.path_study import PathStudyConfig
from dynolab.chapters.classifiers.seeds import Seeds
from dynolab.chapters.images.config import ImageConfig, resolve_images
from dynolab.errors import ConfigError
from flows.flow import FlowParameters, Form, Name, Plan, StagedFlow
from models.vision import ClassifierName
from tasks.class_forces import CLASS_FORCES, ClassForcesJob
from tasks.class_paths import LEARNING_PATHS, LearningPathsJob
from tasks.classification_page import CLASSIFICATION_PAGE, PATHS, ClassificationPageConfig
from tasks.images import IMAGES
from tasks.runtime.pipeline import Step
from tasks.runtime.stage import Platform

_DIGITS = ("ylecun/mnist",)


class ClassificationParameters(FlowParameters):
    """Parameters of the chapter on how classifiers learn."""

    name: Name = Field("classification", description="Name of the run, and of its page's file.")
    seeds: Seeds = Field((0, 1, 2, 3, 4), description="Seeds of weights, batches and wrong labels.")
    data: ImageConfig = ImageConfig()
    networks: tuple[ClassifierName, ...] = Field(
        ("lenet", "mlp", "transformer"),
        min_length=1,
        description="Networks whose forces are measured; figures of class pairs show the first.",
    )
    forces: ForceStudyConfig = ForceStudyConfig()
    paths: PathStudyConfig | None = Field(
        PathStudyConfig(), description="Learning paths of every training example; null: none."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> ClassificationParameters:
        if len(set(self.networks)) < len(self.networks):
            raise ConfigError("networks", list(self.networks), "name every network once")
        batch = self.forces.training.batch_size
        if self.paths is not None:
            batch = max(batch, self.paths.training.batch_size)
        if self.data.train < batch:
            raise ConfigError(
                "data.train",
                self.data.train,
                f"a batch needs {batch} images; give at least as many",
            )
        return self

    @property
    def digits(self) -> bool:
        """Whether the classes are the ten digits."""
        return self.data.source in ("digits", "idx") or self.data.hub_name in _DIGITS


def resolved_classification(parameters: ClassificationParameters) -> ClassificationParameters:
    """Pins the images to their current content.

    **Raises** `ConfigError` for a missing source.
    """
    return parameters.model_copy(update={"data": resolve_images(parameters.data)})


def classification_steps(parameters: ClassificationParameters) -> list[Step]:
    """Images, every network's forces, learning paths of the first network if set, the page."""
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
        settings=parameters.as_yaml,
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
            {step.name: step.name for step in measured},
        ),
    ]


def plan(parameters: ClassificationParameters, _: Platform) -> Plan:
    """Plans the images, the measurements on them, and the page."""
    known = resolved_classification(parameters)
    return Plan(known, classification_steps(known))


FLOW = StagedFlow(
    "classification",
    ClassificationParameters,
    plan,
    page="classification-page",
    file="classification.html",
    forms={
        "classification": Form(
            "How classifiers learn: which class pushes which, and the path of every example.",
            {
                "seeds": "seeds",
                "data_source": "data.source",
                "data_path": "data.path",
                "hub_name": "data.hub_name",
                "images": "data.train",
                "networks": "networks",
                "learning_rate": "forces.training.learning_rate",
                "learning_rates": "forces.learning_rates",
                "noise": "paths.noise",
            },
        )
    },
)
