"""Stages `evaluate` and `displacement`: what a model answers, and what one update does to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field, model_validator

from dynolab.comparisons.arm_table import (
    choice_figures,
    completion_figures,
    displacement_figures,
    evaluation_figures,
)
from dynolab.data.groups import collate_groups, count_group_totals
from dynolab.data.rows import Split, read_rows
from dynolab.evaluation.displacement import (
    Question,
    completion_forces,
    likelihood_displacement,
    one_update,
    token_choice,
)
from dynolab.evaluation.samples import EVALUATION, likelihood_changes, right_answers, score_prompt
from dynolab.forces import PolicyFunction
from dynolab.objectives import build_objective
from dynolab.objectives.advantage_rules import AdvantageRuleConfig
from dynolab.objectives.grpo import GRPOConfig
from dynolab.objectives.registry import GroupConfig, GroupObjectiveConfig
from dynolab.results.groups import (
    CompletionForce,
    LikelihoodChange,
    QuestionDisplacement,
    RightAnswer,
    TokenChoice,
)
from dynolab.rollouts.passes import SAMPLES_PER_K, check_samples
from dynolab.training.config import OptimizerConfig
from dynolab.training.rollout import Scorer, make_groups
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
    # By short names, as columns of MLflow's table of arms show a dozen letters.
    held_out = {name.removeprefix("heldout/"): means[name] for name in means if "heldout/" in name}
    work.tracker.log_metrics(held_out, 0)
    work.log_tables(prompts=scores, likelihood=changes)
    return means | {"seconds": work.seconds}


def _changes(
    work: Work[EvaluationJob], answerer: Answerer, options: dict[str, Any]
) -> Sequence[LikelihoodChange]:
    """The change of the right answers of input `start`; empty without it."""

    if "start" not in work.inputs:
        return []
    before = list(read_rows(work.input_folder("start") / "right.jsonl", RightAnswer))
    changes = likelihood_changes(answerer.logits, before, **options)
    work.write_tables(likelihood=changes)
    return changes


EVALUATE = Stage("evaluate", 4, evaluate)


class DisplacementConfig(StageConfig):
    """How many questions are tested, and what counts as displaced."""

    questions: int = Field(
        40,
        ge=1,
        description="Training prompts that are answered, from the first. Only those whose answers "
        "are partly right are tested.",
    )
    epsilon: float = Field(
        0.0,
        ge=0,
        description="A question is displaced if its right answers rise by no more than this, in "
        "nats on average.",
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="Learning rate of the one update; default: the training's, with which one "
        "question moves the weights as far as a whole batch does in training, and even an update "
        "on right answers alone overshoots. Divide it by the batch size for one question's share.",
    )

    def update(self, training: OptimizerConfig) -> OptimizerConfig:
        """The training's optimizer with the learning rate of the one update."""
        return training.model_copy(
            update={"learning_rate": self.learning_rate or training.learning_rate}
        )


class DisplacementJob(DisplacementConfig, AnsweringConfig):
    """The test of one objective."""

    objective: GroupObjectiveConfig = GRPOConfig()
    optimizer: OptimizerConfig = Field(OptimizerConfig(), description="The training's.")
    completions: int = Field(8, ge=2, description="Answers sampled to each question.")


def displace(work: Work[DisplacementJob]) -> dict[str, float]:
    """Reads inputs `prompts` and `model`; every question's update starts from the model's weights.

    Results: `displacement.jsonl`, the change of each right answer of an updated question;
    `completions.jsonl`, what the push on each sampled answer did to the right ones;
    `token_choice.jsonl`, for a rule that pushes some tokens less, which it chose and which do harm;
    `figures.json`, the share of questions displaced, the mean change, and the rule's precision and
    recall, with 95% intervals.
    """

    config = work.config
    with work.shown():
        answerer = Answerer.of(work)
        questions = _questions(work, answerer, config.objective)
        displacements = likelihood_displacement(
            answerer.logits,
            questions,
            one_update(build_objective(config.objective), config.update(config.optimizer)),
        )
        completions, choices = _forces(work, answerer, questions)
        rows = [
            QuestionDisplacement(id=row.id, samples=config.completions, changes=row.changes)
            for row in displacements
        ]
        work.write_tables(displacement=rows, completions=completions, token_choice=choices)
    figures = (
        displacement_figures(rows, config.epsilon)
        | choice_figures(choices)
        | completion_figures(completions)
    )
    means = log_figures(work, figures, "displacement")
    work.log_tables(displacement=rows, token_choice=choices)
    return means | {"questions": float(len(rows)), "seconds": work.seconds}


def _forces(
    work: Work[DisplacementJob], answerer: Answerer, questions: Sequence[Question]
) -> tuple[list[CompletionForce], list[TokenChoice]]:
    """What each answer did to the right ones, and which tokens the objective's rule chose.

    Both are empty for a dense objective, which also pushes tokens that nobody sampled; the second
    is empty without a rule that chooses tokens of wrong answers.
    """

    objective = work.config.objective
    built = build_objective(objective)
    if built.dense:
        return [], []
    policy = PolicyFunction(answerer.logits.model)
    completions = [
        row for question in questions for row in completion_forces(policy, built, question)
    ]
    if objective.advantage_rule.name not in ("nthr", "random_tokens"):
        return completions, []
    plain = objective.model_copy(update={"advantage_rule": AdvantageRuleConfig()})
    return completions, [
        token_choice(policy, build_objective(plain), before, after.batch)
        for before, after in zip(_questions(work, answerer, plain), questions, strict=True)
    ]


def _questions(
    work: Work[DisplacementJob], answerer: Answerer, objective: GroupConfig
) -> list[Question]:
    """Samples answers to every question, with the advantages of the training's first step."""

    config = work.config
    answers = answerer.answer(
        work, "train", samples=config.completions, step=0, prompts=config.questions
    )
    partly_right = [answer for answer in answers if answer.differ]
    reference = answerer.logits if objective.kl else None
    groups = make_groups(
        partly_right,
        Scorer(answerer.logits, reference, answerer.pad_id, config.sample_batch_size),
        objective,
        temperature=config.temperature,
        right_from=config.right_from,
        seed=config.seed,
    )
    device = next(answerer.logits.parameters()).device
    return [
        Question(
            collate_groups(
                [group],
                answerer.pad_id,
                count_group_totals([group]),
                temperature=config.temperature,
            ).to(device),
            torch.tensor([reward >= config.right_from for reward in answer.rewards], device=device),
        )
        for answer, group in zip(partly_right, groups, strict=True)
    ]


DISPLACEMENT = Stage("displacement", 3, displace)
