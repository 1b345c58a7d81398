"""Stage `judge`: every policy's win rate against the baseline, by one judge."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from dynolab.data.rows import read_rows
from dynolab.endpoint.config import PATIENCE
from dynolab.judges import ExactJudge, Judge, contests, win_rate
from dynolab.judges.config import ExactJudgeConfig, JudgeConfig, LogProbJudgeConfig
from dynolab.results.judges import JudgementCounts, PolicyAnswer, WinRate
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.endpoint import StageEndpoint
from tasks.shared.policies import load_encoder, load_model

ANSWERS_OF = "answers_"


class JudgeJob(StageConfig):
    """One judge and the policies whose answers it compares."""

    label: str = Field(description="Name of the judge in results.")
    judge: JudgeConfig
    baseline: str = Field(description="The policy that the others are compared with.")
    policies: tuple[str, ...] = Field(min_length=1, description="The other policies.")


def judge_answers(work: Work[JudgeJob]) -> dict[str, float]:
    """Reads inputs `answers_<policy>`, and `reference`, the model of a log-prob judge.

    Results: `judgements.jsonl`, the judge's verdicts on every contest in both orders;
    `win_rates.jsonl`, one row for each policy against the baseline. A policy without answers, such
    as one whose training diverged, is in neither.

    `StageEndpoint` caches a judge model's replies.
    """

    config = work.config
    answers: dict[str, list[PolicyAnswer]] = {
        name: list(read_rows(work.input_folder(ANSWERS_OF + name) / "answers.jsonl", PolicyAnswer))
        for name in (*config.policies, config.baseline)
    }
    policies = [name for name in config.policies if answers[name] and answers[config.baseline]]
    all_contests = [
        contest for name in policies for contest in contests(answers, name, config.baseline)
    ]
    endpoint = StageEndpoint(work, getattr(config.judge, "endpoint", None))
    with endpoint.shown():
        try:
            judgements = _judge(work, endpoint).judge(all_contests, endpoint.on_progress)
        finally:
            work.tracker.log_metrics(endpoint.spent("endpoint"), 0)
        rates = [win_rate([row for row in judgements if row.a == name]) for name in policies]
        work.write_tables(judgements=judgements, win_rates=rates)
    work.log_tables(judgements=judgements, win_rates=rates)
    return work.log_metrics(_metrics(rates) | endpoint.spent("endpoint"))


def _judge(work: Work[JudgeJob], endpoint: StageEndpoint) -> Judge:
    from dynolab.judges.llm import LlmJudge

    label, config = work.config.label, work.config.judge
    if isinstance(config, ExactJudgeConfig):
        return ExactJudge(label, config.rewards)
    if isinstance(config, LogProbJudgeConfig):
        from dynolab.judges.log_prob import LogProbJudge
        from dynolab.likelihood.token_logps import ResponseLogits

        folder = work.input_folder("reference", "model")
        model, _ = load_model(folder)
        return LogProbJudge(
            label,
            ResponseLogits(model),
            load_encoder(folder, "truncate_left"),
            batch=config.batch,
            tie_nats=config.tie_nats,
        )
    assert endpoint.endpoint is not None, "an llm judge has an endpoint"
    return LlmJudge(label, endpoint.endpoint, config.criterion)


def _metrics(rates: Sequence[WinRate]) -> dict[str, float]:
    """Every policy's win rate, if any verdict counted, and the number of verdicts by outcome."""
    metrics = {f"judge/{rate.a}/win_rate": rate.rate for rate in rates if rate.judged}
    counts = [rate.counts.model_dump() for rate in rates]
    return metrics | {
        f"judge/{name}": float(sum(count[name] for count in counts))
        for name in JudgementCounts.model_fields
    }


# Timeouts and retries change when a judge answers, not what it answers.
JUDGE = Stage(
    "judge",
    2,
    judge_answers,
    operational=frozenset({f"judge.endpoint.{name}" for name in PATIENCE} | {"judge.batch"}),
)
