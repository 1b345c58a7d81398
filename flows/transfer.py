"""Transfer: images and topics → pretraining, probing, finetuning → page."""

from __future__ import annotations

from pydantic import Field, model_validator

from dynolab.chapters.classifiers.seeds import Seeds
from dynolab.chapters.images.config import ImageConfig, resolve_images
from dynolab.chapters.transfer.task import check_classes
from dynolab.chapters.transfer.topics import TopicConfig, resolve_topics
from dynolab.chapters.transfer.transfer import TransferConfig
from flows.flow import FlowParameters, Form, Name, Plan, StagedFlow
from models.vision import ClassifierName
from tasks.images import IMAGES
from tasks.runtime.pipeline import Step
from tasks.runtime.stage import Platform
from tasks.shared.chapter_page import ChapterPageConfig
from tasks.transfer import TRANSFER_DIGITS, TRANSFER_TOPICS, TopicTransferJob, TransferJob
from tasks.transfer_page import TRANSFER_PAGE


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


def resolved_transfer(parameters: TransferParameters) -> TransferParameters:
    """Pins images and texts to their current content.

    **Raises** `ConfigError` for a missing source.
    """
    texts = None if parameters.texts is None else resolve_topics(parameters.texts)
    return parameters.model_copy(update={"data": resolve_images(parameters.data), "texts": texts})


def transfer_steps(parameters: TransferParameters) -> list[Step]:
    """The steps in order: images, transfer between digits, between topics, and the page."""
    digits = TransferJob(
        **dict(parameters.digits),
        seeds=parameters.seeds,
        model=parameters.model,
        first=parameters.first_digits,
    )
    measured = [Step("transfer-digits", TRANSFER_DIGITS, digits, {"images": "images"})]
    if parameters.texts is not None:
        topics = TopicTransferJob(
            **dict(parameters.topics),
            seeds=parameters.seeds,
            first=parameters.first_topics,
            texts=parameters.texts,
        )
        measured.append(Step("transfer-topics", TRANSFER_TOPICS, topics))
    page = ChapterPageConfig(
        name=parameters.name,
        settings=parameters.as_yaml,
    )
    return [
        Step("images", IMAGES, parameters.data),
        *measured,
        Step("transfer-page", TRANSFER_PAGE, page, {step.name: step.name for step in measured}),
    ]


def plan(parameters: TransferParameters, _: Platform) -> Plan:
    """Plans the images, both transfers, and the page."""
    known = resolved_transfer(parameters)
    return Plan(known, transfer_steps(known))


FLOW = StagedFlow(
    "transfer",
    TransferParameters,
    plan,
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
                "texts_path": "texts.path",
            },
        )
    },
)
