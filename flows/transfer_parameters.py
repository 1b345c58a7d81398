"""Parameters of the flow `transfer`: the tasks, how heads are prepared, and seeds."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.chapters.classifiers.seeds import Seeds
from dynolab.chapters.transfer.task import check_classes
from dynolab.chapters.transfer.transfer import TransferConfig
from dynolab.data.images.config import ImageConfig, resolve_images
from dynolab.data.topics.topics import TopicConfig, resolve_topics
from flows.parameters import Name
from models.vision import ClassifierName


class TransferParameters(BaseModel):
    """What a person chooses when comparing task heads."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name = Field("transfer", description="Name of the run, and of its page's file.")
    project: str = Field("dynolab", description="MLflow experiment.")
    seeds: Seeds = Field((0, 1, 2, 3, 4), description="Of weights, drawn examples and batches.")
    data: ImageConfig = ImageConfig()
    model: ClassifierName = Field("mlp", description="Network for the images; topics take an mlp.")
    first_digits: tuple[int, ...] = Field(
        (0, 1, 2, 3, 4), description="Classes to pretrain on; the others are transferred to."
    )
    digits: TransferConfig = TransferConfig()
    texts: TopicConfig | None = Field(TopicConfig(), description="Texts with topics; null: none.")
    first_topics: tuple[int, ...] = Field(
        (0, 3, 6, 9), description="Topics to pretrain on; the others are transferred to."
    )
    topics: TransferConfig = TransferConfig()

    @model_validator(mode="after")
    def _tasks_have_classes(self) -> TransferParameters:
        check_classes(self.first_digits, self.data.classes, "first_digits")
        return self


def resolved_transfer(parameters: TransferParameters) -> TransferParameters:
    """The parameters with images and texts at the content they have now.

    Raises ConfigError for a source that is not there.
    """
    texts = None if parameters.texts is None else resolve_topics(parameters.texts)
    return parameters.model_copy(update={"data": resolve_images(parameters.data), "texts": texts})
