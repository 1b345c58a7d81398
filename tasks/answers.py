"""Stages that sample answers, for pairs, for judges and to describe a model, and judge them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import islice

from pydantic import Field

from dynolab.comparisons.pair_arms import SampledAnswer, answer_figures
from dynolab.data.rows import Example, PromptRow, Split, read_rows, with_rejected
from dynolab.data.world.lexicon import answered, repeats_fault
from dynolab.endpoint.config import PATIENCE
from dynolab.errors import ConfigError
from dynolab.evaluation.samples import repetition
from dynolab.judges import ExactJudge, Judge, contests, win_rate
from dynolab.judges.config import ExactJudgeConfig, JudgeConfig, LogProbJudgeConfig
from dynolab.judges.llm import LlmJudge
from dynolab.results.judges import JudgementCounts, PolicyAnswer, WinRate
from dynolab.rollouts.generator import SampleConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.endpoint import StageEndpoint
from tasks.shared.policies import load_encoder, load_model, responses
from tasks.shared.rewarded_answers import log_figures


def resample(work: Work[SampleConfig]) -> dict[str, float]:
    """Reads inputs `data` and `model`.

    Results: `train.jsonl` with sampled rejected answers, and the unchanged `probes.jsonl`. A
    training stage reads this result in place of the data stage's.
    """
    data = work.input_folder("data")
    examples = list(read_rows(data / "train.jsonl", Example))
    with work.shown():
        model, tokenizer = load_model(work.input_folder("model", "model"))
        sampled = responses(model, tokenizer, examples, work.config)
        work.write_tables(train=with_rejected(examples, [row.text for row in sampled]))
        shutil.copyfile(data / "probes.jsonl", work.output / "probes.jsonl")
    return {
        "finished": sum(row.finished for row in sampled) / len(sampled),
        "seconds": work.seconds,
    }


RESAMPLED = Stage("resampled", 2, resample)


class AnswersConfig(StageConfig):
    """Which prompts are answered, and how."""

    split: Split = "heldout"
    prompts: int | None = Field(None, ge=1, description="How many, from the first; default: all.")
    sampling: SampleConfig = SampleConfig()


def answer_prompts(work: Work[AnswersConfig]) -> dict[str, float]:
    """Reads inputs `prompts` and `model`.

    Results: `answers.jsonl`, one answer to each prompt. Policies with the same seed sample with the
    same random numbers, so that less of the difference between their answers is chance.

    **Raises** `ConfigError` for a split without prompts.
    """
    config = work.config
    file = work.input_folder("prompts") / f"{config.split}.jsonl"
    prompts = list(islice(read_rows(file, PromptRow), config.prompts))
    if not prompts:
        raise ConfigError(
            "answers.split",
            config.split,
            "the data have no such prompts; set data.heldout_rows, or choose the other split",
        )
    with work.shown():
        model, tokenizer = load_model(work.input_folder("model", "model"))
        sampled = responses(model, tokenizer, prompts, config.sampling)
        rows = [
            PolicyAnswer(
                id=row.id,
                split=config.split,
                prompt=row.prompt,
                turn=row.turn,
                truth=row.answer,
                answer=response.text,
                finished=response.finished,
                tokens=len(response.response),
            )
            for row, response in zip(prompts, sampled, strict=True)
        ]
        work.write_tables(answers=rows)
    work.log_tables(answers=rows)
    return {
        "answers/finished": sum(row.finished for row in rows) / len(rows),
        "answers/tokens": sum(row.tokens for row in rows) / len(rows),
        "answers/distinct": len({row.answer for row in rows}) / len(rows),
        "seconds": work.seconds,
    }


ANSWERS = Stage("answers", 2, answer_prompts)


SPLITS: tuple[Split, ...] = ("train", "heldout")


class SampledAnswersConfig(SampleConfig):
    """How answers are sampled, and how many."""

    max_new_tokens: int = Field(24, ge=1)
    batch_size: int = Field(128, ge=1, description="Answers sampled in one batch.")
    samples: int = Field(4, ge=1, description="Answers to each prompt.")
    prompts: int | None = Field(
        None, ge=1, description="Prompts of each split, from the first; default: all."
    )


def sample_answers(work: Work[SampledAnswersConfig]) -> dict[str, float]:
    """Reads inputs `data` and `model`.

    Results: `answers.jsonl`, in the judges' format, and `figures.json`, means over the prompts of
    each split with 95% intervals. Both are empty if the training diverged and left no model.
    """

    with work.shown():
        answers = _answers(work) if work.input_holds("model", "model") else []
        work.write_tables(answers=[row.answer for row in answers])
    return log_figures(work, answer_figures(answers), "said") | {"seconds": work.seconds}


def _answers(work: Work[SampledAnswersConfig]) -> list[SampledAnswer]:

    config, data = work.config, work.input_folder("data")
    requests = [
        (split, pair, number)
        for split in SPLITS
        for pair in islice(read_rows(data / f"{split}.jsonl", Example), config.prompts)
        for number in range(config.samples)
    ]
    model, tokenizer = load_model(work.input_folder("model", "model"))
    sampled = responses(model, tokenizer, [pair for _, pair, _ in requests], config)
    end = tokenizer.eos_token_id
    return [
        SampledAnswer(
            PolicyAnswer(
                id=f"{pair.id}/{number}",
                split=split,
                prompt=pair.prompt,
                turn=pair.turn,
                truth=answered(pair.prompt, pair.chosen),
                chosen=pair.content(pair.chosen),
                answer=sample.text,
                finished=sample.finished,
                tokens=len(sample.response),
            ),
            logp=sum(sample.logps),
            refused=repeats_fault(
                pair.prompt, sample.text, chosen=pair.chosen, rejected=pair.rejected or ""
            ),
            repetition=repetition([token for token in sample.response if token != end]),
        )
        for (split, pair, number), sample in zip(requests, sampled, strict=True)
    ]


SAMPLED_ANSWERS = Stage("said", 3, sample_answers)


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
