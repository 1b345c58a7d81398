"""Stages that sample a model's answers: for pairs, for judges, and to describe it."""

from __future__ import annotations

import shutil
from itertools import islice
from typing import TYPE_CHECKING

from pydantic import Field

from dynolab.data.rows import Example, PromptRow, Split, read_rows, with_rejected
from dynolab.errors import ConfigError
from dynolab.results.judges import PolicyAnswer
from dynolab.rollouts.generator import SampleConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.policies import load_model, responses
from tasks.shared.rewarded_answers import log_figures

if TYPE_CHECKING:
    from dynolab.comparisons.pair_arms import SampledAnswer


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
    from dynolab.comparisons.pair_arms import answer_figures

    with work.shown():
        answers = _answers(work) if work.input_holds("model", "model") else []
        work.write_tables(answers=[row.answer for row in answers])
    return log_figures(work, answer_figures(answers), "said") | {"seconds": work.seconds}


def _answers(work: Work[SampledAnswersConfig]) -> list[SampledAnswer]:
    from dynolab.comparisons.pair_arms import SampledAnswer
    from dynolab.data.world.lexicon import answered, repeats_fault
    from dynolab.evaluation.samples import repetition

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
