"""Which stages a comparison of remedies has, in which order, and what each reads."""

from __future__ import annotations

import yaml

from flows.mitigation_parameters import MitigationParameters
from flows.pair_arms import arm_steps, judge_step, said_step, shared_steps
from tasks.filter import FILTER
from tasks.mitigation_page import MITIGATION_PAGE, MitigationPageConfig
from tasks.runtime.chain import Step


def mitigation_steps(parameters: MitigationParameters) -> list[Step]:
    """The comparison's stages in order: what arms share, every arm, and the page.

    What seeds share too (given rows, given weights) has one key: the store has it once.
    """
    arms, baseline = parameters.arms, parameters.baseline_label
    shared, compared = [], []
    for seed in parameters.seeds:
        shared += shared_steps(parameters, arms, seed)
        for label, arm in arms.items():
            compared += arm_steps(parameters, label, arm, seed)
            compared.append(said_step(parameters, label, seed))
        if others := [label for label in arms if label != baseline]:
            compared.append(judge_step(parameters, baseline, others, seed))
    page = MitigationPageConfig(
        name=parameters.name,
        seeds=parameters.seeds,
        arms=arms,
        baseline=baseline,
        training=parameters.training,
        on_policy=parameters.on_policy,
        judge=parameters.judge.name,
        settings=yaml.safe_dump(parameters.model_dump(mode="json"), sort_keys=False),
    )
    measured = {step.name: step.name for step in compared if step.stage is not FILTER}
    return [*shared, *compared, Step("mitigation-page", MITIGATION_PAGE, page, measured)]
