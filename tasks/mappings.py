"""Stage `mappings`: how fast a small network learns mappings from objects to messages."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from dynolab.chapters.simplicity.mappings import Messages, all_mappings, sampled_bijections
from dynolab.chapters.simplicity.rows import SpaceName
from dynolab.errors import ConfigError
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work

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
