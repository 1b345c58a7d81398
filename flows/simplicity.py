"""The chapter on simplicity: many mappings learned at once → how fast, and why → page."""

from __future__ import annotations

from pydantic import Field, model_validator

from dynolab.chapters.classifiers.seeds import Seeds
from dynolab.errors import ConfigError
from flows.flow import FlowParameters, Form, Name, Plan, StagedFlow
from tasks.mappings import MAPPINGS, MappingsConfig, SpaceConfig
from tasks.runtime.pipeline import Step
from tasks.runtime.stage import Platform
from tasks.shared.chapter_page import ChapterPageConfig
from tasks.simplicity_page import SIMPLICITY_PAGE

SPACES = (
    SpaceConfig(attributes=2, values=2),
    SpaceConfig(attributes=3, values=2, sampled=40),
    SpaceConfig(attributes=2, values=3, sampled=60),
)


class SimplicityParameters(FlowParameters):
    """Parameters of the chapter on simplicity."""

    name: Name = Field("simplicity", description="Name of the run and of its page's file.")
    seeds: Seeds = Field(tuple(range(8)), description="Seeds of the initial weights.")
    width: int = Field(32, ge=1, description="Units of the network's hidden layer.")
    spaces: tuple[SpaceConfig, ...] = Field(
        SPACES, min_length=1, description="Spaces of objects, each learned separately."
    )

    @model_validator(mode="after")
    def _names_spaces_once(self) -> SimplicityParameters:
        labels = [space.space.label for space in self.spaces]
        if len(set(labels)) < len(labels):
            raise ConfigError("spaces", labels, "name every space once")
        return self

    def learned(self, space: SpaceConfig) -> MappingsConfig:
        """The stage's config for one space, with the shared settings."""
        return MappingsConfig(**dict(space), seeds=self.seeds, width=self.width)


def simplicity_steps(parameters: SimplicityParameters) -> list[Step]:
    """The steps in order."""
    page = ChapterPageConfig(
        name=parameters.name,
        settings=parameters.as_yaml,
    )
    spaces = [
        Step(f"mappings-{space.attributes}x{space.values}", MAPPINGS, parameters.learned(space))
        for space in parameters.spaces
    ]
    shown = {step.name: step.name for step in spaces}
    return [*spaces, Step("simplicity-page", SIMPLICITY_PAGE, page, shown)]


def plan(parameters: SimplicityParameters, _: Platform) -> Plan:
    """Plans every space of objects, and the page."""
    return Plan(parameters, simplicity_steps(parameters))


FLOW = StagedFlow(
    "simplicity",
    SimplicityParameters,
    plan,
    page="simplicity-page",
    file="simplicity.html",
    forms={
        "simplicity": Form(
            "Which mappings of objects to messages a small network learns fast.",
            {"seeds": "seeds", "width": "width"},
        )
    },
)
