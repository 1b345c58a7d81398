"""What comparisons of trainings over seeds share: rows, base model, seeds, and one baseline."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from dynolab.data.sources.load import DataConfig, resolve_data
from dynolab.errors import ConfigError
from flows.parameters import Name, check_model_knows_data, seeded_base, seeded_data
from tasks.base import BaseConfig, resolve_base

Label = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
Seed = Annotated[int, Field(ge=0)]


class Comparison(BaseModel):
    """Seeds, and what every seed starts from."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name = Field(description="Name of the comparison: its run and its page's file.")
    project: str = Field("dynolab", description="MLflow experiment.")
    seeds: tuple[Seed, ...] = Field(
        (0, 1, 2),
        min_length=1,
        description="Each of weights, batches and samples alike, and of the built-in world. Rows "
        "of another source are the same for all.",
    )
    data: DataConfig = DataConfig()
    base: BaseConfig = BaseConfig()

    @model_validator(mode="after")
    def _starts(self) -> Comparison:
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError("seeds", list(self.seeds), "name every seed once")
        check_model_knows_data(self.base, self.data)
        return self

    def data_of(self, seed: int) -> DataConfig:
        """The rows of one seed: another world, or the same rows where they are given."""
        return seeded_data(self.data, seed) if self.data.source == "world" else self.data

    def base_of(self, seed: int) -> BaseConfig:
        """The base model of one seed: other weights, or the same where they are given."""
        return seeded_base(self.base, seed) if self.base.source == "builtin" else self.base


AnyComparison = TypeVar("AnyComparison", bound=Comparison)


def resolved_comparison(parameters: AnyComparison) -> AnyComparison:
    """The parameters with sources at the content they have now.

    **Raises** `ConfigError` for a source that is not there.
    """
    update = {"data": resolve_data(parameters.data), "base": resolve_base(parameters.base)}
    return parameters.model_copy(update=update)
