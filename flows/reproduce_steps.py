"""Which stages a reproduction has, in which order, and what each reads."""

from __future__ import annotations

import yaml

from dynolab.claims.reproduction import AFTER_EXTENDED, AFTER_SFT
from flows.pair_arms import arm_steps, judge_step, said_step, shared_steps
from flows.reproduce_parameters import ReproduceParameters
from tasks.arm import ARM
from tasks.judge import JUDGE
from tasks.reproduction_page import REPRODUCTION_PAGE, ReproductionPageConfig
from tasks.runtime.chain import Step
from tasks.said import SAID
from tasks.training import SFT

JUDGED = (AFTER_SFT, AFTER_EXTENDED)
"""The trainings whose answers the papers let judges compare."""


def reproduce_steps(parameters: ReproduceParameters) -> list[Step]:
    """The reproduction's stages in order: seed by seed SFT, DPO, answers, and the page."""
    steps: list[Step] = []
    arms = parameters.arms
    for seed in parameters.seeds:
        steps += shared_steps(parameters, arms, seed)
        for label, arm in arms.items():
            steps += arm_steps(parameters, label, arm, seed)
        steps += [said_step(parameters, label, seed) for label in JUDGED]
        steps.append(judge_step(parameters, AFTER_SFT, [AFTER_EXTENDED], seed))
    page = ReproductionPageConfig(
        name=parameters.name,
        seeds=parameters.seeds,
        arms=tuple(arms),
        judge=parameters.judge.name,
        settings=yaml.safe_dump(parameters.model_dump(mode="json"), sort_keys=False),
    )
    measured = (SFT, ARM, SAID, JUDGE)
    shown = {step.name: step.name for step in steps if step.stage in measured}
    return [*steps, Step("reproduction-page", REPRODUCTION_PAGE, page, shown)]
