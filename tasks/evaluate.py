"""Stage `evaluate`: pass@k of a model's samples, and the change of right answers' likelihood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field, model_validator

from dynolab.data.rows import Split, read_rows
from dynolab.results.groups import LikelihoodChange, RightAnswer
from dynolab.rollouts.passes import SAMPLES_PER_K, check_samples
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.rewarded_answers import Answerer, AnsweringConfig, log_figures

SPLITS: tuple[Split, ...] = ("train", "heldout")
PARTS = 4  # of the stage's progress


class EvaluationConfig(StageConfig):
    """How many samples of how many prompts are evaluated."""

    k: int = Field(16, ge=1, description="Largest k of pass@k.")
    samples: int = Field(
        64, ge=1, description=f"Answers to each prompt: at least {SAMPLES_PER_K} k."
    )
    prompts: int | None = Field(
        None, ge=1, description="Prompts of each split, from the first; default: all."
    )

    @model_validator(mode="after")
    def _samples_enough(self) -> EvaluationConfig:
        check_samples(self.samples, self.k)
        return self


class EvaluationJob(EvaluationConfig, AnsweringConfig):
    """The evaluation of one model."""


def evaluate(work: Work[EvaluationJob]) -> dict[str, float]:
    """Reads inputs `prompts` and `model`, and for a trained model `start`, the evaluation of the
    model that it was trained from.

    Results: `prompts.jsonl`, every prompt's score; `right.jsonl`, the right answers with their
    log-probability; with `start` also `likelihood.jsonl`, the change of the start's right answers;
    `figures.json`, means over the prompts of each split with 95% intervals.
    """
    from dynolab.comparisons.arm_table import evaluation_figures
    from dynolab.evaluation.samples import EVALUATION, right_answers, score_prompt

    config = work.config
    with work.shown(PARTS) as progress:
        answerer = Answerer.of(work)
        answers = []
        for number, split in enumerate(SPLITS, start=1):
            groups = answerer.answer(
                work,
                split,
                samples=config.samples,
                step=EVALUATION + number,
                prompts=config.prompts,
            )
            answers += [(group, split) for group in groups]
            progress.update(number, split)
        scores = [score_prompt(group, split, config.right_from) for group, split in answers]
        options: dict[str, Any] = {  # log-probabilities are taken at the sampling temperature
            "pad_id": answerer.pad_id,
            "batch": config.sample_batch_size,
            "temperature": config.temperature,
        }
        right = right_answers(answerer.logits, answers, config.right_from, **options)
        work.write_tables(prompts=scores, right=right)
        progress.update(3, "likelihood")
        changes = _changes(work, answerer, options)
        progress.update(PARTS)
    means = log_figures(work, evaluation_figures(scores, changes, k=config.k), "eval")
    work.log_tables(prompts=scores, likelihood=changes)
    return means | {"seconds": work.seconds}


def _changes(
    work: Work[EvaluationJob], answerer: Answerer, options: dict[str, Any]
) -> Sequence[LikelihoodChange]:
    """The change of the right answers of input `start`; empty without it."""
    from dynolab.evaluation.samples import likelihood_changes

    if "start" not in work.inputs:
        return []
    before = list(read_rows(work.input_folder("start") / "right.jsonl", RightAnswer))
    changes = likelihood_changes(answerer.logits, before, **options)
    work.write_tables(likelihood=changes)
    return changes


EVALUATE = Stage("evaluate", 4, evaluate)
