"""Stage `mappings`: how fast a small network learns mappings from objects to messages."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from dynolab.chapters.simplicity.mappings import Messages, all_mappings, sampled_bijections
from dynolab.errors import ConfigError
from dynolab.results.simplicity import SpaceName
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work

MOST_OBJECTS = 81


class SpaceConfig(SpaceName):
    """A space of objects, and which of its mappings are learned."""

    sampled: int | None = Field(
        None,
        ge=1,
        description="So many compositional and so many other bijections; null: every map, which "
        "spaces of four objects at most have few enough of.",
    )
    learning_rate: float = Field(0.5, gt=0)
    steps: int = Field(200, ge=2, description="Of full-batch gradient descent.")

    @model_validator(mode="after")
    def _can_be_listed(self) -> SpaceConfig:
        if self.objects > MOST_OBJECTS:
            raise ConfigError(
                "spaces", self.label, f"has {self.objects} objects; choose {MOST_OBJECTS} at most"
            )
        self.mappings(0)
        return self

    @property
    def space(self) -> SpaceName:
        """The space alone."""
        return SpaceName(attributes=self.attributes, values=self.values)

    def mappings(self, seed: int) -> list[Messages]:
        """The mappings; the seed draws where not all are taken.

        **Raises:** `ConfigError` where they cannot be listed, or are not so many.
        """
        if self.sampled is None:
            return all_mappings(self.space)
        return sampled_bijections(self.space, self.sampled, seed)


class MappingsConfig(SpaceConfig):
    """One space's mappings, each learned with every seed."""

    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        tuple(range(8)), min_length=1, description="Of the initial weights."
    )
    width: int = Field(32, ge=1, description="Units of the hidden layer.")


def learn_mappings(work: Work[MappingsConfig]) -> dict[str, float]:
    """Results: `mappings.jsonl`, and `paths.jsonl` with each kind's means by step."""
    from dynolab.chapters.simplicity.sweep import kind_paths, learned, sweep

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
