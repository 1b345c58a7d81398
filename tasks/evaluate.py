"""Stage `evaluate`: what a model's samples are worth, and what has become of right answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field, model_validator

from dynolab.data.rows import Split, read_rows
from dynolab.results.groups import LikelihoodChange, RightAnswer
from dynolab.rollouts.passes import SAMPLES_PER_K, check_samples
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.rewarded_answers import Answerer, AnsweringConfig, tell_figures

SPLITS: tuple[Split, ...] = ("train", "heldout")
PARTS = 4  # of the stage's progress


class EvaluationConfig(StageConfig):
    """How much is asked of each model."""

    k: int = Field(16, ge=1, description="The largest of pass@k.")
    samples: int = Field(
        64, ge=1, description=f"Answers to each prompt: at least {SAMPLES_PER_K} for each of k."
    )
    prompts: int | None = Field(
        None, ge=1, description="Prompts of each split: the first ones; default: all."
    )

    @model_validator(mode="after")
    def _samples_enough(self) -> EvaluationConfig:
        check_samples(self.samples, self.k)
        return self


class EvaluationJob(EvaluationConfig, AnsweringConfig):
    """The evaluation of one model."""


def evaluate(work: Work[EvaluationJob]) -> dict[str, float]:
    """Reads inputs `prompts` and `model`, and of a trained model `start`, the evaluation of the
    one that it was trained from.

    Results: `prompts.jsonl`, every prompt's score; `right.jsonl`, the right answers with their
    log-probability; with `start` also `likelihood.jsonl`, what has become of its right answers;
    `figures.json`, means over the prompts of each split with 95% intervals.
    """
    from dynolab.comparisons.arm_table import evaluation_figures
    from dynolab.evaluation.samples import EVALUATION, right_answers, score_prompt

    config = work.config
    with work.shown(PARTS) as progress:
        answerer = Answerer.of(work)
        answers = []
        for number, split in enumerate(SPLITS, start=1):
            of_split = answerer.answer(
                work,
                split,
                samples=config.samples,
                step=EVALUATION + number,
                prompts=config.prompts,
            )
            answers += [(group, split) for group in of_split]
            progress.update(number, split)
        scores = [score_prompt(group, split, config.right_from) for group, split in answers]
        reading = _reading(answerer)
        right = right_answers(answerer.logits, answers, config.right_from, **reading)
        work.write_tables(prompts=scores, right=right)
        progress.update(3, "likelihood")
        changes = _changes(work, answerer, reading)
        progress.update(PARTS)
    means = tell_figures(work, evaluation_figures(scores, changes, k=config.k), "eval")
    work.log_tables(prompts=scores, likelihood=changes)
    return means | {"seconds": work.seconds}


def _reading(answerer: Answerer) -> dict[str, Any]:
    """How answers' log-probabilities are read: at the temperature that draws them."""
    config = answerer.config
    return {
        "pad_id": answerer.pad_id,
        "batch": config.sample_batch_size,
        "temperature": config.temperature,
    }


def _changes(
    work: Work[EvaluationJob], answerer: Answerer, reading: dict[str, Any]
) -> Sequence[LikelihoodChange]:
    """What has become of the right answers of the model before, where there is one."""
    from dynolab.evaluation.samples import likelihood_changes

    if "start" not in work.inputs:
        return []
    before = list(read_rows(work.input_folder("start") / "right.jsonl", RightAnswer))
    changes = likelihood_changes(answerer.logits, before, **reading)
    work.write_tables(likelihood=changes)
    return changes


EVALUATE = Stage("evaluate", 2, evaluate)
