"""The chapters that train classifiers and small networks: what a person starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, model_validator

from dynolab.errors import ConfigError
from experiments.chapters.classification.forces import ForceStudyConfig
from experiments.chapters.classification.paths import PathStudyConfig
from experiments.chapters.images import ImageConfig, resolve_images
from experiments.chapters.stages import (
    CHAPTER_PAGE,
    CLASS_FORCES,
    IMAGES,
    LEARNING_PATHS,
    LEARNING_SPEED,
    MAPPINGS,
    SUPERVISION,
    TRANSFER_DIGITS,
    TRANSFER_TOPICS,
    ChapterName,
    ChapterPageConfig,
    ClassForcesJob,
    LearningPathsJob,
    MappingsConfig,
    SpaceConfig,
    SpeedJob,
    SupervisionJob,
    TopicTransferJob,
    TransferJob,
)
from experiments.chapters.supervision.speeds import SpeedConfig
from experiments.chapters.supervision.supervision import SupervisionConfig
from experiments.chapters.transfer.task import TopicConfig, check_classes
from experiments.chapters.transfer.transfer import TransferConfig
from experiments.chapters.vision import ClassifierName
from flows.flow import FlowParameters, Form, Name, Plan, StagedFlow, Step
from tasks.runtime.stage import Platform
from tasks.shared.seeds import Seeds

_DIGITS = ("ylecun/mnist",)
READS = {"images": "images"}


def page_step(
    chapter: ChapterName,
    parameters: FlowParameters,
    shown: Sequence[Step],
    *,
    learning_rates: tuple[float, ...] = (),
    digits: bool = False,
) -> Step:
    """The last step of a chapter: its page, from the results of the steps `shown`."""
    page = ChapterPageConfig(
        name=parameters.name,
        settings=parameters.as_yaml,
        chapter=chapter,
        learning_rates=learning_rates,
        digits=digits,
    )
    return Step(f"{chapter}-page", CHAPTER_PAGE, page, {step.name: step.name for step in shown})


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


def plan_classification(parameters: ClassificationParameters, _: Platform) -> Plan:
    """Plan images, every network's forces, learning paths of the first network, and the page."""
    resolved = parameters.model_copy(update={"data": resolve_images(parameters.data)})
    measured = [
        Step(
            f"forces-{network}",
            CLASS_FORCES,
            ClassForcesJob(**dict(resolved.forces), model=network, seeds=resolved.seeds),
            READS,
        )
        for network in resolved.networks
    ]
    if resolved.paths is not None:
        job = LearningPathsJob(
            **dict(resolved.paths), model=resolved.networks[0], seeds=resolved.seeds
        )
        measured.append(Step("learning-paths", LEARNING_PATHS, job, READS))
    page = page_step(
        "classification",
        resolved,
        measured,
        learning_rates=(resolved.forces.training.learning_rate,),
        digits=resolved.digits,
    )
    return Plan(resolved, [Step("images", IMAGES, resolved.data), *measured, page])


CLASSIFICATION = StagedFlow(
    "classification",
    ClassificationParameters,
    plan_classification,
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


def plan_supervision(parameters: SupervisionParameters, _: Platform) -> Plan:
    """Plan the images, every noise level, learning speeds, and the page."""
    resolved = parameters.model_copy(update={"data": resolve_images(parameters.data)})
    shared = {"model": resolved.model, "seeds": resolved.seeds}
    measured = [
        Step(
            f"noise-{100 * noise:g}",
            SUPERVISION,
            SupervisionJob(**dict(resolved.supervision), **shared, noise=noise),
            READS,
        )
        for noise in resolved.noise
    ]
    speed = SpeedJob(**dict(resolved.speed), **shared)
    measured.append(Step("learning-speed", LEARNING_SPEED, speed, READS))
    images = Step("images", IMAGES, resolved.data)
    return Plan(resolved, [images, *measured, page_step("supervision", resolved, measured)])


SUPERVISION_FLOW = StagedFlow(
    "supervision",
    SupervisionParameters,
    plan_supervision,
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


class TransferParameters(FlowParameters):
    """Parameters of the comparison of task heads."""

    name: Name = Field("transfer", description="Name of the run, and of its page's file.")
    seeds: Seeds = Field(
        (0, 1, 2, 3, 4), description="Seeds of weights, drawn examples and batches."
    )
    data: ImageConfig = ImageConfig()
    model: ClassifierName = Field("mlp", description="Network for the images; topics take an mlp.")
    first_digits: tuple[int, ...] = Field(
        (0, 1, 2, 3, 4), description="Classes to pretrain on; the others are the second task."
    )
    digits: TransferConfig = TransferConfig()
    texts: TopicConfig | None = Field(TopicConfig(), description="Texts with topics; null: none.")
    first_topics: tuple[int, ...] = Field(
        (0, 3, 6, 9), description="Topics to pretrain on; the others are the second task."
    )
    topics: TransferConfig = TransferConfig()

    @model_validator(mode="after")
    def _tasks_have_classes(self) -> TransferParameters:
        check_classes(self.first_digits, self.data.classes, "first_digits")
        return self


def plan_transfer(parameters: TransferParameters, _: Platform) -> Plan:
    """Plan the images, transfer between digits, transfer between topics, and the page."""
    resolved = parameters.model_copy(update={"data": resolve_images(parameters.data)})
    digits = TransferJob(
        **dict(resolved.digits),
        seeds=resolved.seeds,
        model=resolved.model,
        first=resolved.first_digits,
    )
    measured = [Step("transfer-digits", TRANSFER_DIGITS, digits, READS)]
    if resolved.texts is not None:
        topics = TopicTransferJob(
            **dict(resolved.topics),
            seeds=resolved.seeds,
            first=resolved.first_topics,
            texts=resolved.texts,
        )
        measured.append(Step("transfer-topics", TRANSFER_TOPICS, topics))
    images = Step("images", IMAGES, resolved.data)
    return Plan(resolved, [images, *measured, page_step("transfer", resolved, measured)])


TRANSFER = StagedFlow(
    "transfer",
    TransferParameters,
    plan_transfer,
    page="transfer-page",
    file="transfer.html",
    forms={
        "transfer": Form(
            "How to prepare a task head: some digits, then others; some topics, then others.",
            {
                "seeds": "seeds",
                "data_source": "data.source",
                "data_path": "data.path",
                "hub_name": "data.hub_name",
                "images": "data.train",
                "first_digits": "first_digits",
                "taus": "digits.taus",
                "examples": "digits.examples",
            },
        )
    },
)


SPACES = (
    SpaceConfig(attributes=2, values=2),
    SpaceConfig(attributes=3, values=2, sampled=40),
    SpaceConfig(attributes=2, values=3, sampled=60),
)


class SimplicityParameters(FlowParameters):
    """Parameters of the chapter on simplicity."""

    name: Name = Field("simplicity", description="Name of the run and of its page's file.")
    seeds: Seeds = Field(tuple(range(8)), description="Seeds of the initial weights.")
    width: int = Field(32, ge=1, description="Units of the network's hidden layer.")
    spaces: tuple[SpaceConfig, ...] = Field(
        SPACES, min_length=1, description="Spaces of objects, each learned separately."
    )

    @model_validator(mode="after")
    def _names_spaces_once(self) -> SimplicityParameters:
        labels = [space.space.label for space in self.spaces]
        if len(set(labels)) < len(labels):
            raise ConfigError("spaces", labels, "name every space once")
        return self


def plan_simplicity(parameters: SimplicityParameters, _: Platform) -> Plan:
    """Plan every space of objects, and the page."""
    spaces = [
        Step(
            f"mappings-{space.attributes}x{space.values}",
            MAPPINGS,
            MappingsConfig(**dict(space), seeds=parameters.seeds, width=parameters.width),
        )
        for space in parameters.spaces
    ]
    return Plan(parameters, [*spaces, page_step("simplicity", parameters, spaces)])


SIMPLICITY = StagedFlow(
    "simplicity",
    SimplicityParameters,
    plan_simplicity,
    page="simplicity-page",
    file="simplicity.html",
    forms={
        "simplicity": Form(
            "Which mappings of objects to messages a small network learns fast.",
            {"seeds": "seeds", "width": "width"},
        )
    },
)
