"""Stage `said`: a model's sampled answers to the data's prompts, and how varied they are."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from pydantic import Field

from dynolab.data.rows import Example, Split, read_rows
from dynolab.results.judges import PolicyAnswer
from dynolab.rollouts.generator import SampleConfig, Sampled
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.policies import load_model, responses
from tasks.shared.rewarded_answers import log_figures

if TYPE_CHECKING:
    from dynolab.comparisons.pair_arms import SampledAnswer

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
        _answer(split, pair, number, sample, end)
        for (split, pair, number), sample in zip(requests, sampled, strict=True)
    ]


def _answer(
    split: Split, pair: Example, number: int, sample: Sampled, end: int | None
) -> SampledAnswer:
    from dynolab.comparisons.pair_arms import SampledAnswer
    from dynolab.data.world.lexicon import answered, repeats_fault
    from dynolab.evaluation.repeats import repetition

    return SampledAnswer(
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


SAMPLED_ANSWERS = Stage("said", 3, sample_answers)
