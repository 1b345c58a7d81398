"""Parameters of the flow `classification`: images, networks, learning rates and seeds."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.chapters.classification.force_study import ForceStudyConfig
from dynolab.chapters.classification.path_study import PathStudyConfig
from dynolab.chapters.classifiers.seeds import Seeds
from dynolab.data.images.config import ImageConfig, resolve_images
from dynolab.errors import ConfigError
from flows.parameters import Name
from models.vision import ClassifierName

_DIGITS = ("ylecun/mnist",)


class ClassificationParameters(BaseModel):
    """What a person chooses when asking how classifiers learn."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name = Field("classification", description="Name of the run, and of its page's file.")
    project: str = Field("dynolab", description="MLflow experiment.")
    seeds: Seeds = Field((0, 1, 2, 3, 4), description="Of weights, batches and wrong labels.")
    data: ImageConfig = ImageConfig()
    networks: tuple[ClassifierName, ...] = Field(
        ("lenet", "mlp", "transformer"),
        min_length=1,
        description="Whose forces are measured; figures of pairs of classes show the first.",
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
                "data.train", self.data.train, f"a batch holds {batch} images; give as many"
            )
        return self

    @property
    def digits(self) -> bool:
        """Whether the classes are the ten digits."""
        return self.data.source in ("digits", "idx") or self.data.hub_name in _DIGITS


def resolved_classification(parameters: ClassificationParameters) -> ClassificationParameters:
    """The parameters with images at the content they have now.

    Raises ConfigError for a source that is not there.
    """
    return parameters.model_copy(update={"data": resolve_images(parameters.data)})
