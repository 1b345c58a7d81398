"""Which stages a comparison of policies has, in which order, and what each reads."""

from __future__ import annotations

from collections.abc import Collection

import yaml

from dynolab.judges.config import LogProbJudgeConfig
from flows.judge_parameters import REFERENCE, JudgeParameters, policy_step
from tasks.answers import ANSWERS
from tasks.base import BASE
from tasks.group import PROMPTS
from tasks.judge import ANSWERS_OF, JUDGE, JudgeJob
from tasks.judge_page import JUDGE_PAGE, JUDGED_BY, JudgePageConfig
from tasks.runtime.chain import Step


def judge_steps(parameters: JudgeParameters, given: Collection[str]) -> list[Step]:
    """The comparison's stages in order; `given` are names of results that need no stage."""
    assert parameters.data is not None, "resolved parameters have data"
    imports = [
        Step(field, BASE, one.base)
        for field, one in parameters.models.items()
        if field not in given
    ]
    answers = [
        Step(
            f"answers-{name}",
            ANSWERS,
            parameters.answers,
            {"prompts": "prompts", "model": policy_step(name)},
        )
        for name in parameters.policies
    ]
    said = {f"{ANSWERS_OF}{name}": f"answers-{name}" for name in parameters.policies}
    judges = [_judge(parameters, name, said) for name in parameters.judges]
    page = JudgePageConfig(
        name=parameters.name,
        baseline=parameters.baseline_label,
        policies=parameters.others,
        judges=parameters.judges,
        answers=parameters.answers,
        settings=yaml.safe_dump(parameters.model_dump(mode="json"), sort_keys=False),
    )
    judged = {f"{JUDGED_BY}{name}": f"judge-{name}" for name in parameters.judges}
    return [
        Step("prompts", PROMPTS, parameters.data),
        *imports,
        *answers,
        *judges,
        Step("judge-page", JUDGE_PAGE, page, {**said, **judged}),
    ]


def _judge(parameters: JudgeParameters, name: str, said: dict[str, str]) -> Step:
    judge = parameters.judges[name]
    job = JudgeJob(
        label=name, judge=judge, baseline=parameters.baseline_label, policies=parameters.others
    )
    reads = {REFERENCE: REFERENCE} if isinstance(judge, LogProbJudgeConfig) else {}
    return Step(f"judge-{name}", JUDGE, job, {**said, **reads})
