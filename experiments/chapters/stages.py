"""The stages of the chapters, and the last stage, which writes a chapter's page."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from dynolab import distributed
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction
from dynolab.grouping import grouped
from experiments.chapters.classification.forces import ForceStudyConfig, study_forces
from experiments.chapters.classification.paths import PathStudyConfig, study_paths
from experiments.chapters.images import (
    ImageConfig,
    ImageSplits,
    load_images,
    read_images,
    write_images,
)
from experiments.chapters.simplicity.mappings import (
    Messages,
    SpaceName,
    all_mappings,
    sampled_bijections,
)
from experiments.chapters.simplicity.sweep import kind_paths, learned, sweep
from experiments.chapters.squeezing.cases import count_violations
from experiments.chapters.squeezing.pushes import Tally, pushes
from experiments.chapters.squeezing.softmax import panels, shape_points, step_paths
from experiments.chapters.supervision.adaptation import compare_adaptation
from experiments.chapters.supervision.speeds import SpeedConfig, compare_speeds
from experiments.chapters.supervision.supervision import SupervisionConfig, compare_supervision
from experiments.chapters.transfer.task import TopicConfig, TransferTask, image_task, topic_task
from experiments.chapters.transfer.transfer import TransferConfig, compare_heads
from experiments.chapters.vision import ClassifierName, build_classifier
from tasks.audit import read_pairs
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.page_helpers import PageConfig, facts_of, input_metrics, page_shown
from tasks.shared.policies import load_encoder, load_model
from tasks.shared.seeds import Seeds

ChapterName = Literal[
    "classification", "supervision", "transfer", "simplicity", "squeezing", "coupling"
]

IMAGES_FILE = "images.safetensors"


def images(work: Work[ImageConfig]) -> dict[str, float]:
    """Results: `images.safetensors`, which `experiments.chapters.images.read_images` reads."""

    with work.shown():
        splits = load_images(work.config)
        write_images(splits, work.output / IMAGES_FILE)
    channels, height, width = splits.train.shape
    return {
        "images/train": float(len(splits.train)),
        "images/validation": float(len(splits.validation)),
        "images/test": float(len(splits.test)),
        "images/pixels": float(channels * height * width),
        "seconds": work.seconds,
    }


def _images(work: Work[Any]) -> ImageSplits:

    return read_images(work.input_folder("images") / IMAGES_FILE)


IMAGES = Stage("images", 1, images)


class NetworkConfig(StageConfig):
    """The network that a stage trains, and the seeds of its trainings."""

    model: ClassifierName = "mlp"
    seeds: Seeds = (0,)


class ClassForcesJob(ForceStudyConfig, NetworkConfig):
    """One network at all learning rates and seeds."""


def class_forces(work: Work[ClassForcesJob]) -> dict[str, float]:
    """Reads input `images`.

    Results: `states.jsonl`, `ranks.jsonl`, `influence.jsonl` and `diverged.jsonl`.
    """

    config, device = work.config, distributed.device()
    data = _images(work).to(device)
    build = partial(build_classifier, config.model, device=device)
    with work.shown():
        tables = study_forces(build, config.model, data, config, config.seeds)
        work.write_tables(**tables)
    rate, states = config.training.learning_rate, tables["states"]
    main = [state for state in states if state["learning_rate"] == rate]
    last = max(state["epoch"] for state in main)
    return work.log_metrics(
        {
            f"{config.model}/accuracy": _mean(
                state["accuracy"] for state in main if state["epoch"] == last
            ),
            f"{config.model}/unexplained": float(
                np.nanmean([state["unexplained"] for state in main])
            ),
        }
    )


CLASS_FORCES = Stage("class-forces", 2, class_forces)


class LearningPathsJob(PathStudyConfig, NetworkConfig):
    """One network on the images and an mlp on the toy data, with all seeds."""


def learning_paths(work: Work[LearningPathsJob]) -> dict[str, float]:
    """Reads input `images`. Results: `scores.jsonl`, `epochs.jsonl` and `paths.jsonl`."""

    config = work.config
    data = _images(work)
    build, toy_build = (
        partial(build_classifier, name, device=distributed.device())
        for name in (config.model, "mlp")
    )
    with work.shown():
        tables = study_paths(build, data, config, config.seeds, toy_build)
        work.write_tables(**tables)
    return work.log_metrics(_means(tables["scores"], "auc", "paths/{data}/auc"))


LEARNING_PATHS = Stage("learning-paths", 2, learning_paths)


IMAGE_AXES = 3  # channels, height, width


class SupervisionJob(SupervisionConfig, NetworkConfig):
    """All arms and seeds at one noise level."""

    noise: float = Field(0.4, ge=0, lt=1, description="Share of wrong labels.")


class SpeedJob(SpeedConfig, NetworkConfig):
    """The trainings, one per seed, whose every step is analysed; those on vectors take an mlp."""


def supervision(work: Work[SupervisionJob]) -> dict[str, float]:
    """Reads input `images`. Results: `supervision.jsonl` and `detections.jsonl`.

    Returns mean accuracies as `noise_<percent>/accuracy/<arm>`, mean AUCs as `…/auc/<score>`.
    """

    config = work.config
    data = _images(work)
    build = partial(build_classifier, config.model, data.train.shape, data.classes)
    with work.shown():
        tables = compare_supervision(build, data, config, config.noise, config.seeds)
        work.write_tables(**tables)
    work.log_tables(**tables)
    level = f"noise_{100 * config.noise:g}"
    return work.log_metrics(
        _means(tables["supervision"], "accuracy", level + "/accuracy/{arm}")
        | _means(tables["detections"], "auc", level + "/auc/{score}")
    )


def learning_speed(work: Work[SpeedJob]) -> dict[str, float]:
    """Reads input `images`. Results: `speeds.jsonl` and `adaptations.jsonl`.

    Returns every kind's mean change as `speed/<kind>`, and to first order as `first_order/<kind>`,
    in nats.
    """

    config = work.config
    data = _images(work)
    with work.shown():
        rows = compare_speeds(
            lambda shape, classes, seed: build_classifier(
                config.model if len(shape) == IMAGE_AXES else "mlp", shape, classes, seed
            ),
            data.train,
            data.classes,
            config,
            config.seeds,
        )
        adaptations = compare_adaptation(config.adaptation, config.seeds)
        work.write_tables(speeds=rows, adaptations=adaptations)
    means = (_means(rows, name, name + "/{kind}") for name in ("speed", "first_order"))
    return work.log_metrics({name: mean for numbers in means for name, mean in numbers.items()})


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _means(rows: Iterable[dict[str, Any]], column: str, name: str) -> dict[str, float]:
    """Means of a column over the rows with the same metric's name, a format of columns."""
    values = grouped((name.format(**row), row[column]) for row in rows)
    return {metric: _mean(numbers) for metric, numbers in values.items()}


SUPERVISION = Stage("supervision", 2, supervision)
LEARNING_SPEED = Stage("learning-speed", 3, learning_speed)


class TransferJob(TransferConfig, NetworkConfig):
    """All strategies, τ and seeds on one pair of tasks."""

    first: tuple[int, ...] = Field((0, 1, 2, 3, 4), description="Classes of the first task.")


class TopicTransferJob(TransferJob):
    """Transfer between topics."""

    texts: TopicConfig = TopicConfig()


def transfer_digits(work: Work[TransferJob]) -> dict[str, float]:
    """Reads input `images`. Results: `transfer.jsonl`.

    Returns mean accuracies as `<task>/<strategy>/tau_<τ>/accuracy`.
    """

    return _transfer(work, image_task(_images(work), work.config.first, seed=0))


def transfer_topics(work: Work[TopicTransferJob]) -> dict[str, float]:
    """Reads no inputs. Results and metrics are those of `transfer_digits`."""

    return _transfer(work, topic_task(work.config.texts, work.config.first))


def _transfer(work: Work[Any], task: TransferTask) -> dict[str, float]:

    config = work.config
    with work.shown():
        rows = compare_heads(partial(build_classifier, config.model), task, config, config.seeds)
        work.write_tables(transfer=rows)
    work.log_tables(transfer=rows)
    return work.log_metrics(_means(rows, "accuracy", "{task}/{strategy}/tau_{tau}/accuracy"))


TRANSFER_DIGITS = Stage("transfer-digits", 2, transfer_digits)
TRANSFER_TOPICS = Stage("transfer-topics", 2, transfer_topics)


MOST_OBJECTS = 81


class SpaceConfig(SpaceName):
    """A space of objects, and which of its mappings to messages are learned."""

    sampled: int | None = Field(
        None,
        ge=1,
        description="Number of compositional and of other bijections to draw; null: all maps, for "
        "spaces of at most four objects.",
    )
    learning_rate: float = Field(0.5, gt=0)
    steps: int = Field(200, ge=2, description="Steps of full-batch gradient descent.")

    @model_validator(mode="after")
    def _can_be_listed(self) -> SpaceConfig:
        if self.objects > MOST_OBJECTS:
            raise ConfigError(
                "spaces", self.label, f"has {self.objects} objects; choose at most {MOST_OBJECTS}"
            )
        self.mappings(0)
        return self

    @property
    def space(self) -> SpaceName:
        """The space, without its mappings."""
        return SpaceName(attributes=self.attributes, values=self.values)

    def mappings(self, seed: int) -> list[Messages]:
        """The mappings to learn; `seed` is that of the draw if they are sampled.

        **Raises:** `ConfigError` if there are too many to list, or fewer than `sampled`.
        """
        if self.sampled is None:
            return all_mappings(self.space)
        return sampled_bijections(self.space, self.sampled, seed)


class MappingsConfig(SpaceConfig):
    """One space, whose mappings are each learned with every seed."""

    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        tuple(range(8)), min_length=1, description="Seeds of the initial weights."
    )
    width: int = Field(32, ge=1, description="Units of the hidden layer.")


def learn_mappings(work: Work[MappingsConfig]) -> dict[str, float]:
    """Results: `mappings.jsonl`, and `paths.jsonl`, the means by step for each kind of mapping."""

    config = work.config
    with work.shown():
        mappings = config.mappings(0)
        trained = sweep(
            config.space,
            mappings,
            config.seeds,
            width=config.width,
            learning_rate=config.learning_rate,
            steps=config.steps,
        )
        rows = learned(config.space, mappings, trained)
        work.write_tables(mappings=rows, paths=kind_paths(rows, trained))
    work.log_tables(mappings=rows)
    return {"trained": float(len(rows) * len(config.seeds)), "seconds": work.seconds}


MAPPINGS = Stage("mappings", 2, learn_mappings)


STEP_SIZES = tuple(float(size) for size in np.linspace(0, 10, 41))


Classes = Annotated[int, Field(ge=3)]


class SoftmaxConfig(StageConfig):
    """How many random cases, with how many classes."""

    seed: int = Field(0, ge=0)
    cases: int = Field(20_000, ge=1, description="Random cases for every statement.")
    classes: tuple[Classes, ...] = Field(
        (5, 50, 1_000), min_length=1, description="Numbers of classes V of the cases."
    )
    shown: tuple[Classes, ...] = Field(
        (50, 1_000), min_length=1, description="Numbers of classes of the pictures."
    )
    shape_cases: int = Field(
        1_000, ge=2, description="Distributions averaged at each point of a curve."
    )


def try_cases(work: Work[SoftmaxConfig]) -> dict[str, float]:
    """Results: `counts.jsonl`, `panels.jsonl`, `shapes.jsonl`, `step_paths.jsonl`."""

    config = work.config
    with work.shown():
        counts = [
            count_violation
            for classes in config.classes
            for count_violation in count_violations(config.cases, classes, config.seed)
        ]
        pictures = [panel for classes in config.shown for panel in panels(classes, config.seed)]
        shapes = [
            shape_point
            for classes in config.shown
            for shape_point in shape_points(config.shape_cases, classes, config.seed)
        ]
        paths = step_paths(config.shown[0], config.seed, STEP_SIZES)
        work.write_tables(counts=counts, panels=pictures, shapes=shapes, step_paths=paths)
    metrics = {
        f"violations/{count['statement']}/{count['classes']}": count["violations"] / count["cases"]
        for count in counts
    }
    work.log_tables(counts=counts, shapes=shapes)
    return work.log_metrics(metrics)


SOFTMAX = Stage("softmax", 3, try_cases)


class PushConfig(StageConfig):
    """Which answers are pushed down, and how far."""

    pairs: int = Field(24, ge=2, description="Training pairs, from the first.")
    fall: float = Field(
        0.1, gt=0, description="First-order fall of a pushed answer, in nats per token."
    )


def push_answers(work: Work[PushConfig]) -> dict[str, float]:
    """Reads inputs `data` and `model`. Computes in float64, because the changes are small.

    Results: `pushes.jsonl`, `explained.jsonl`, `ranks.jsonl`.
    """

    config = work.config
    folder = work.input_folder("model", "model")
    with work.shown(2 * config.pairs) as progress:
        data = work.input_folder("data")
        pairs = read_pairs(data, load_encoder(folder), "train", config.pairs)
        model, _ = load_model(folder)
        policy, tally = PolicyFunction(model, torch.float64), Tally()
        for number, push in enumerate(pushes(policy, pairs, config.fall), start=1):
            tally.add(push)
            progress.update(number)
        left = list(tally.left_over())
        work.write_tables(pushes=tally.rows, explained=left, ranks=tally.rank_changes())
    metrics = {f"left_over/{row['answer']}/{row['picture']}": row["left"] for row in left}
    work.log_tables(pushes=tally.rows, explained=left)
    return work.log_metrics(metrics) | {"pairs": float(len(pairs))}


PUSH = Stage("push", 2, push_answers)


class ChapterPageConfig(PageConfig):
    """Which chapter, and facts about the run that its page shows."""

    chapter: ChapterName
    learning_rates: tuple[float, ...] = Field(
        (), description="Of the kernels in their order, or the one that figures of classes show."
    )
    digits: bool = Field(False, description="Whether the classes are the ten digits.")


def chapter_page(work: Work[ChapterPageConfig]) -> dict[str, float]:
    """Read the chapter's stages under their names.

    Results: `<chapter>.html`, `claims.jsonl` and `figures/`. Returns the number of claims by
    outcome, and the inputs' metrics.
    """

    from experiments.chapters.page import Facts, write_chapter

    config, name = work.config, work.config.chapter
    module = f"experiments.chapters.{name}" + ("" if name == "coupling" else ".page")
    build = getattr(import_module(module), name)
    with page_shown(work):
        inputs = {name: work.input_folder(name) for name in work.inputs}
        claims = write_chapter(
            build(inputs, Facts(config.learning_rates, config.digits)),
            work.output,
            f"{name}.html",
            name=config.name,
            settings=config.settings,
            stages=facts_of(work.inputs),
        )
    return claims | input_metrics(work)


CHAPTER_PAGE = Stage("chapter-page", 2, chapter_page)
