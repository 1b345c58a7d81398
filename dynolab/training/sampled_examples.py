"""Examples that the policy makes itself while it learns."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dynolab import distributed
from dynolab.data.batches import draw
from dynolab.data.encode import Encoded, EncodedExample, Encoder
from dynolab.data.rows import spaced
from dynolab.errors import ConfigError
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.objectives import Objective
from dynolab.objectives.clipping import ClippedConfig
from dynolab.objectives.spin import SPINConfig
from dynolab.objectives.sppo import SPPOConfig
from dynolab.rollouts.decoding import ModelGenerator
from dynolab.rollouts.rewards import Rewards
from dynolab.training.adapters import WithoutAdapters
from dynolab.training.config import GroupTrainConfig
from dynolab.training.engine import Engine
from dynolab.training.example_source import Drawn
from dynolab.training.recorded_examples import read_recorded, recorded
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
from dynolab.training.step_batch import StepExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel


ITERATED = (SPINConfig, SPPOConfig)
"""Objectives whose reference is the policy at the beginning of an iteration, a rollout."""


class Online:
    """Rollouts: every `updates_per_rollout` steps the policy at hand answers their prompts.

    Prompts come in seeded permutations, as rows do, and every step has its own. Samples depend on
    weights, seed, step and place in the rollout alone, so ranks and micro-batches change nothing.
    Groups whose rewards are all equal compare nothing and are left out, out of the step's
    denominators too.

    **Arguments:**

    - `policy`: the model that the engine trains.
    - `encoder`: of the rows' own answers; its length bounds prompt and completion together.

    **Raises** `ConfigError` where self-play lacks a row's answer.
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
        own = isinstance(config.objective, SPINConfig)
        self._own = _own_answers(prompts, encoder) if own else {}

    def begin(self, logits: ResponseLogits) -> None:
        """Keeps a copy of the initial weights where they are the reference.

        Under adapters the weights stay what they were, and no copy is needed.
        """
        reference: ResponseLogits
        if not self._objective.needs_reference:
            return
        if isinstance(self._config.objective, ITERATED):
            reference = self._scorer.policy  # it scores at the rollout alone, before any update
        elif self._config.lora is not None:
            reference = WithoutAdapters(logits.model)
        else:
            reference = copy.deepcopy(logits).requires_grad_(False)
        self._scorer = replace(self._scorer, reference=reference)

    def draw(self, engine: Engine, step: int) -> Drawn:
        """The step's groups or pairs, out of a new rollout where it begins one."""
        place = step % self._config.updates_per_rollout
        metrics: dict[str, float] = {}
        if place == 0:
            with engine.gathered():
                answers = self._answers(step)
                self._rollout = [self._examples(ours, step + n) for n, ours in enumerate(answers)]
            every = [our for ours in answers for our in ours]
            metrics = answer_metrics(every, self._config.right_from)
        examples = self._rollout[place]
        equal = self._config.batch_size - len(examples)
        return Drawn(examples, {**metrics, "train/groups_equal": float(equal)})

    def _answers(self, step: int) -> list[list[Answers]]:
        """Answers to the prompts of the steps of the rollout that begins with one, step by step."""
        config, size = self._config, self._config.batch_size
        rows = [
            row
            for number in range(config.updates_per_rollout)
            for row in draw(step + number, size, len(self._prompts), config.seed)
        ]
        answers = answer_prompts(
            self._generator,
            self._rewards,
            [self._prompts[row] for row in rows],
            config.sampling,
            samples=config.completions,
            step=step,
        )
        return [answers[start : start + size] for start in range(0, len(answers), size)]

    def _examples(self, answers: Sequence[Answers], step: int) -> Sequence[StepExample]:
        """What a step learns from its answers."""
        config = self._config
        if isinstance(config.objective, SPINConfig):
            pairs = [
                EncodedExample(answer.id, self._own[answer.id], answer.sampled[0].encoded)
                for answer in answers
            ]
            return score_pairs(pairs, self._scorer, self._objective.sides)
        telling = [answer for answer in answers if answer.differ]
        if not isinstance(config.objective, ClippedConfig):
            return score_pairs(ranked_pairs(telling), self._scorer, self._objective.sides)
        return make_groups(
            telling,
            self._scorer,
            config.objective,
            temperature=config.temperature,
            right_from=config.right_from,
            seed=config.seed + step * config.batch_size,
        )

    def save(self, step: int, folder: Path) -> None:
        """Writes the examples of the rollout's steps to come."""
        place = step % self._config.updates_per_rollout
        if place == 0 or distributed.rank() != 0:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for number, examples in enumerate(self._rollout[place:], start=place):
            rows = [
                recorded(example, self._objective.sides, self.temperature) for example in examples
            ]
            lines = [row.model_dump_json() + "\n" for row in rows]
            (folder / f"update-{number}.jsonl").write_text("".join(lines))

    def load(self, step: int, folder: Path) -> None:
        """Reads the examples of the rollout's steps to come."""
        place = step % self._config.updates_per_rollout
        if place == 0:
            return
        self._rollout = [[] for _ in range(self._config.updates_per_rollout)]
        for number in range(place, self._config.updates_per_rollout):
            lines = (folder / f"update-{number}.jsonl").read_text().splitlines()
            self._rollout[number] = [read_recorded(line).scored(torch.float32) for line in lines]


def _own_answers(prompts: Sequence[Prompt], encoder: Encoder) -> dict[str, Encoded]:
    """The rows' own answers by row."""
    own = {
        row.id: encoder.response(row.id, row.prompt, spaced(row.answer))
        for row, _ in prompts
        if row.answer is not None
    }
    lacking = [row.id for row, _ in prompts if own.get(row.id) is None]
    if lacking:
        raise ConfigError(
            "data.answer",
            None,
            f"objective spin needs every row's own answer, within the context; {len(lacking)} "
            f"rows have none, the first is {lacking[0]}",
        )
    return {key: encoded for key, encoded in own.items() if encoded is not None}
