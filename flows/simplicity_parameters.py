"""Parameters of the flow `simplicity`: which spaces of objects, learned with which seeds."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.errors import ConfigError
from flows.parameters import Name
from tasks.mappings import MappingsConfig, SpaceConfig

SPACES = (
    SpaceConfig(attributes=2, values=2),
    SpaceConfig(attributes=3, values=2, sampled=40),
    SpaceConfig(attributes=2, values=3, sampled=60),
)


class SimplicityParameters(BaseModel):
    """What a person chooses when asking which mappings are learned fast."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name = Field("simplicity", description="Name of the run and of its page's file.")
    project: str = Field("dynolab", description="MLflow experiment.")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        tuple(range(8)), min_length=1, description="Of the initial weights."
    )
    width: int = Field(32, ge=1, description="Units of the network's hidden layer.")
    spaces: tuple[SpaceConfig, ...] = Field(
        SPACES, min_length=1, description="Spaces of objects, each learned by itself."
    )

    @model_validator(mode="after")
    def _tells_apart(self) -> SimplicityParameters:
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError("seeds", list(self.seeds), "name every seed once")
        labels = [one.space.label for one in self.spaces]
        if len(set(labels)) < len(labels):
            raise ConfigError("spaces", labels, "name every space once")
        return self

    def learned(self, space: SpaceConfig) -> MappingsConfig:
        """One space with what all share."""
        return MappingsConfig(**dict(space), seeds=self.seeds, width=self.width)
