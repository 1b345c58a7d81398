"""Training examples sampled from the policy while it learns."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dynolab import distributed
from dynolab.data.batches import draw
from dynolab.data.encode import Encoded, EncodedExample, Encoder
from dynolab.data.rows import json_lines, write_rows
from dynolab.errors import ConfigError
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.objectives import Objective
from dynolab.objectives.dpo import SPINConfig
from dynolab.objectives.pair_losses import SPPOConfig
from dynolab.objectives.policy_gradient import ClippedConfig
from dynolab.rollouts.decoding import ModelGenerator
from dynolab.rollouts.rewards import Rewards
from dynolab.training.adapters import WithoutAdapters
from dynolab.training.config import GroupTrainConfig
from dynolab.training.engine import Engine
from dynolab.training.examples import Drawn
from dynolab.training.rollout import (
    Answers,
    Prompt,
    Scorer,
    answer_metrics,
    answer_prompts,
    make_groups,
    ranked_pairs,
    score_pairs,
)
from dynolab.training.step_batch import StepExample, read_recorded, recorded

if TYPE_CHECKING:
    from transformers import PreTrainedModel


ITERATED = (SPINConfig, SPPOConfig)
"""Objectives whose reference is the policy at the beginning of the rollout."""


class Online:
    """Rollouts: every `updates_per_rollout` steps the current policy answers their prompts.

    Every step takes its own prompts from seeded permutations, as rows are. Samples depend only on
    weights, seed, step and position in the rollout, not on ranks and micro-batches. Groups whose
    rewards are all equal carry no comparison: they are left out, also of the step's denominators.

    **Arguments:**

    - `policy`: the model that the engine trains.
    - `encoder`: encodes the rows' own answers; its `max_length` bounds prompt plus completion.

    **Raises** `ConfigError` if the objective is `spin` and a row has no answer.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        objective: Objective,
        config: GroupTrainConfig,
        policy: PreTrainedModel,
        encoder: Encoder,
        *,
        pad_id: int,
    ) -> None:
        self.temperature = config.temperature
        self._prompts, self._objective, self._config = prompts, objective, config
        self._generator = ModelGenerator(policy, encoder.tokenizer, encoder.max_length)
        self._rewards = Rewards(config.rewards)
        sequences = config.micro_examples * config.completions
        self._scorer = Scorer(ResponseLogits(policy), None, pad_id, sequences)
        self._rollout: list[Sequence[StepExample]] = []
        plays_itself = isinstance(config.objective, SPINConfig)
        self._row_answers = _encode_answers(prompts, encoder) if plays_itself else {}

    def begin(self, logits: ResponseLogits) -> None:
        """Copies the initial weights if they are the reference.

        Adapters leave the weights unchanged, so they need no copy.
        """
        reference: ResponseLogits
        if not self._objective.needs_reference:
            return
        if isinstance(self._config.objective, ITERATED):
            reference = self._scorer.policy  # scores only during the rollout, before any update
        elif self._config.lora is not None:
            reference = WithoutAdapters(logits.model)
        else:
            reference = copy.deepcopy(logits).requires_grad_(False)
        self._scorer = replace(self._scorer, reference=reference)

    def draw(self, engine: Engine, step: int) -> Drawn:
        """Returns the step's groups or pairs; samples a new rollout if one begins here."""
        index = step % self._config.updates_per_rollout
        metrics: dict[str, float] = {}
        if index == 0:
            with engine.gathered():
                by_step = self._answers(step)
                self._rollout = [
                    self._examples(self._refilled(answers, step + n), step + n)
                    for n, answers in enumerate(by_step)
                ]
            every = list(chain.from_iterable(by_step))
            metrics = answer_metrics(every, self._config.right_from)
        examples = self._rollout[index]
        equal = self._config.batch_size - len(examples)
        return Drawn(examples, {**metrics, "train/groups_equal": float(equal)})

    def _answers(self, step: int) -> list[list[Answers]]:
        """Samples answers for every step of the rollout that begins at `step`; a list per step."""
        config, size = self._config, self._config.batch_size
        rows: list[int] = []
        for number in range(config.updates_per_rollout):
            rows += draw(step + number, size, len(self._prompts), config.seed)
        answers = self._sampled(rows, step)
        return [answers[start : start + size] for start in range(0, len(answers), size)]

    def _sampled(self, rows: Sequence[int], step: int) -> list[Answers]:
        return answer_prompts(
            self._generator,
            self._rewards,
            [self._prompts[row] for row in rows],
            self._config.sampling,
            samples=self._config.completions,
            step=step,
        )

    def _refilled(self, answers: list[Answers], step: int) -> list[Answers]:
        """A step's answers, with other prompts in place of those whose rewards are equal."""
        seen = {answer.id for answer in answers}
        for attempt in range(1, self._config.resample + 1):
            uneven = [answer for answer in answers if answer.differ]
            seed = self._config.seed + step * self._config.resample + attempt
            order = draw(0, len(self._prompts), len(self._prompts), seed)
            fresh = [row for row in order if self._prompts[row][0].id not in seen]
            fresh = fresh[: len(answers) - len(uneven)]
            if not fresh:
                break
            seen |= {self._prompts[row][0].id for row in fresh}
            answers = uneven + self._sampled(fresh, step)
        return answers

    def _examples(self, answers: Sequence[Answers], step: int) -> Sequence[StepExample]:
        """Turns a step's answers into pairs or groups."""
        config = self._config
        if isinstance(config.objective, SPINConfig):
            pairs = [
                EncodedExample(answer.id, self._row_answers[answer.id], answer.sampled[0].encoded)
                for answer in answers
            ]
            return score_pairs(pairs, self._scorer, self._objective.sides)
        unequal = [answer for answer in answers if answer.differ]
        if not isinstance(config.objective, ClippedConfig):
            return score_pairs(ranked_pairs(unequal), self._scorer, self._objective.sides)
        return make_groups(
            unequal,
            self._scorer,
            config.objective,
            temperature=config.temperature,
            right_from=config.right_from,
            seed=config.seed + step * config.batch_size,
        )

    def save(self, step: int, folder: Path) -> None:
        """Writes the examples of the rollout's remaining steps."""
        index = step % self._config.updates_per_rollout
        if index == 0 or distributed.rank() != 0:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for number, examples in enumerate(self._rollout[index:], start=index):
            rows = [
                recorded(example, self._objective.sides, self.temperature) for example in examples
            ]
            write_rows(folder / f"update-{number}.jsonl", rows)

    def load(self, step: int, folder: Path) -> None:
        """Reads the examples of the rollout's remaining steps."""
        index = step % self._config.updates_per_rollout
        if index == 0:
            return
        self._rollout = [[] for _ in range(self._config.updates_per_rollout)]
        for number in range(index, self._config.updates_per_rollout):
            lines = json_lines(folder / f"update-{number}.jsonl")
            self._rollout[number] = [read_recorded(line).scored(torch.float32) for line in lines]


def _encode_answers(prompts: Sequence[Prompt], encoder: Encoder) -> dict[str, Encoded]:
    """The rows' own answers, encoded, by row id."""
    answers = {
        row.id: encoder.response(row.id, row.prompt, row.written(row.answer), row.turn)
        for row, _ in prompts
        if row.answer is not None
    }
    lacking = [row.id for row, _ in prompts if answers.get(row.id) is None]
    if lacking:
        raise ConfigError(
            "data.answer",
            None,
            f"objective spin needs an answer that fits the context in every row; {len(lacking)} "
            f"rows have none, the first is {lacking[0]}",
        )
    return {key: encoded for key, encoded in answers.items() if encoded is not None}
