"""Which stages the chapter on squeezing has, in which order, and what each reads."""

from __future__ import annotations

from collections.abc import Collection

import yaml

from flows.squeezing_parameters import MODEL, SqueezingParameters
from tasks.base import BASE
from tasks.chapter import ChapterPageConfig
from tasks.data import DATA
from tasks.push import PUSH
from tasks.runtime.chain import Step
from tasks.softmax import SOFTMAX
from tasks.squeezing_page import SQUEEZING_PAGE
from tasks.training import SFT


def squeezing_steps(parameters: SqueezingParameters, given: Collection[str]) -> list[Step]:
    """The stages in order; `given` are names of results that need no stage."""
    page = ChapterPageConfig(
        name=parameters.name,
        settings=yaml.safe_dump(parameters.model_dump(mode="json"), sort_keys=False),
    )
    pushed = _push(parameters, given)
    shown = {"softmax": "softmax"} | ({"push": "push"} if pushed else {})
    return [
        Step("softmax", SOFTMAX, parameters.softmax),
        *pushed,
        Step("squeezing-page", SQUEEZING_PAGE, page, shown),
    ]


def _push(parameters: SqueezingParameters, given: Collection[str]) -> list[Step]:
    """Rows and model, where no result has them, and the pushes."""
    if parameters.push is None:
        return []
    steps = [] if "data" in given else [Step("data", DATA, parameters.data)]
    if parameters.model is None:
        steps += [
            Step("base", BASE, parameters.base, {"data": "data"}),
            Step(MODEL, SFT, parameters.sft, {"data": "data", "model": "base"}),
        ]
    elif MODEL not in given:
        steps.append(Step(MODEL, BASE, parameters.model.base))
    return [*steps, Step("push", PUSH, parameters.push, {"data": "data", "model": MODEL})]
