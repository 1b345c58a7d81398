"""Parameters of the flow `supervision`: images, noise levels, arms and seeds."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.chapters.classifiers.seeds import Seeds
from dynolab.chapters.supervision.speed_comparisons import SpeedConfig
from dynolab.chapters.supervision.supervision import SupervisionConfig
from dynolab.data.images.config import ImageConfig, resolve_images
from dynolab.errors import ConfigError
from flows.parameters import Name
from models.vision import ClassifierName

Share = Annotated[float, Field(ge=0, lt=1)]


class SupervisionParameters(BaseModel):
    """What a person chooses when comparing supervisory signals under label noise."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name = Field("supervision", description="Name of the run, and of its page's file.")
    project: str = Field("dynolab", description="MLflow experiment.")
    seeds: Seeds = Field((0, 1, 2, 3, 4), description="Of weights, wrong labels and batches.")
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
    """The parameters with images at the content they have now.

    Raises ConfigError for a source that is not there.
    """
    return parameters.model_copy(update={"data": resolve_images(parameters.data)})
