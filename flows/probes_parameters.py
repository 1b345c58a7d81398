"""Parameters of the flow `probes`: which pairs are watched, in which kinds, and who makes them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.sources.load import DataConfig, resolve_data
from dynolab.errors import ConfigError
from dynolab.probes.making.probe_set import ProbeSetConfig
from flows.parameters import Name, check_model_knows_data, seeded_base, seeded_data
from tasks.base import BaseConfig, resolve_base


class ProbesParameters(BaseModel):
    """What a person chooses when building a probe set."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name = Field("probes", description="Name of the set: its run and its rows' file.")
    project: str = Field("dynolab", description="MLflow experiment.")
    seed: int = Field(
        0,
        ge=0,
        description="Of data, weights and draws; a study that watches the set has the same one.",
    )
    data: DataConfig = DataConfig()
    base: BaseConfig | None = Field(
        None, description="The untrained policy; null: none, where no kind needs it."
    )
    probe_set: ProbeSetConfig = ProbeSetConfig()

    @model_validator(mode="after")
    def _can_be_made(self) -> ProbesParameters:
        if self.base is None and self.probe_set.policy_kinds:
            raise ConfigError(
                "base",
                None,
                f"{self.probe_set.policy_kinds[0]} needs a policy: name a model folder or a Hub "
                "name as base.source, or leave the kind out",
            )
        if self.base is not None:
            check_model_knows_data(self.base, self.data)
        return self


def resolved_probes(parameters: ProbesParameters) -> ProbesParameters:
    """The parameters with the seed everywhere, and sources at the content they have now.

    Raises ConfigError for a source that is not there.
    """
    seed, base = parameters.seed, parameters.base
    return parameters.model_copy(
        update={
            "data": resolve_data(seeded_data(parameters.data, seed)),
            "base": None if base is None else resolve_base(seeded_base(base, seed)),
            "probe_set": parameters.probe_set.model_copy(update={"seed": seed}),
        }
    )
