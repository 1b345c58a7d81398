"""Which stages the chapter on simplicity has: one for each space, and the page."""

from __future__ import annotations

import yaml

from flows.simplicity_parameters import SimplicityParameters
from tasks.chapter import ChapterPageConfig
from tasks.mappings import MAPPINGS
from tasks.runtime.chain import Step
from tasks.simplicity_page import SIMPLICITY_PAGE


def simplicity_steps(parameters: SimplicityParameters) -> list[Step]:
    """The stages in order."""
    page = ChapterPageConfig(
        name=parameters.name,
        settings=yaml.safe_dump(parameters.model_dump(mode="json"), sort_keys=False),
    )
    spaces = [
        Step(f"mappings-{one.attributes}x{one.values}", MAPPINGS, parameters.learned(one))
        for one in parameters.spaces
    ]
    shown = {step.name: step.name for step in spaces}
    return [*spaces, Step("simplicity-page", SIMPLICITY_PAGE, page, shown)]
