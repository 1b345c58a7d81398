"""Stage `judge-page`: the page of a comparison of policies."""

from __future__ import annotations

from dynolab.judges.config import JudgeConfig
from tasks.judge import ANSWERS_OF
from tasks.policy_answers import AnswersConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.page_helpers import PageConfig, page_shown, stage_facts

JUDGED_BY = "judged_"


class JudgePageConfig(PageConfig):
    """Facts about the comparison that the page shows."""

    baseline: str
    policies: tuple[str, ...]
    judges: dict[str, JudgeConfig]
    answers: AnswersConfig


def judge_page(work: Work[JudgePageConfig]) -> dict[str, float]:
    """Reads inputs `answers_<policy>` and `judged_<judge>`.

    Results: `judge.html`, `summary.json`, `agreements.jsonl` and `figures/`; the files go to MLflow
    too. Returns win rates, agreement and the counts of verdicts.
    """
    from dynolab.report.comparison.judges import (
        JudgePageInputs,
        read_judged,
        read_policy_answers,
        write_judge_page,
    )

    config = work.config
    with page_shown(work):
        inputs = JudgePageInputs(
            name=config.name,
            baseline=config.baseline,
            judges=config.judges,
            temperature=config.answers.sampling.temperature,
            answers={
                name: read_policy_answers(work.input_folder(ANSWERS_OF + name))
                for name in (*config.policies, config.baseline)
            },
            judged={
                name: read_judged(work.input_folder(JUDGED_BY + name)) for name in config.judges
            },
            settings=config.settings,
            stages=stage_facts(work),
        )
        return write_judge_page(inputs, work.output)


JUDGE_PAGE = Stage("judge-page", 3, judge_page)
