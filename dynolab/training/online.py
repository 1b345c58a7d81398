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
from dynolab.likelihood import ResponseLogits
from dynolab.objectives import Objective
from dynolab.objectives.clipping import ClippedConfig
from dynolab.rollouts.decoding import ModelGenerator
from dynolab.rollouts.rewards import Rewards
from dynolab.training.adapters import WithoutAdapters
from dynolab.training.config import GroupTrainConfig
from dynolab.training.engine import Engine
from dynolab.training.recorded import read_recorded, recorded
from dynolab.training.rollout import (
    Answers,
    Prompt,
    Scorer,
    answer_metrics,
    answer_prompts,
    make_groups,
    make_pairs,
)
from dynolab.training.source import Drawn
from dynolab.training.step_batch import StepExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Online:
    """Rollouts: every `updates_per_rollout` steps the policy at hand answers their prompts.

    Prompts come in seeded permutations, as rows do, and every step has its own. Samples depend on
    weights, seed, step and place in the rollout alone, so ranks and micro-batches change nothing.
    Groups whose rewards are all equal compare nothing and are left out, out of the step's
    denominators too.

    **Arguments:**

    - `policy`: the model that the engine trains.
    - `length`: longest prompt with completion, in tokens.
    """

    def __init__(
        self, prompts: Sequence[Prompt], objective: Objective, config: GroupTrainConfig,
        policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, length: int, pad_id: int,
    ) -> None:  # fmt: skip
        self.temperature = config.temperature
        self._prompts, self._objective, self._config = prompts, objective, config
        self._generator = ModelGenerator(policy, tokenizer, length)
        self._rewards = Rewards(config.rewards)
        sequences = config.micro_examples * config.completions
        self._scorer = Scorer(ResponseLogits(policy), None, pad_id, sequences)
        self._rollout: list[Sequence[StepExample]] = []

    def begin(self, logits: ResponseLogits) -> None:
        """Keeps a copy of the initial weights where they are the reference.

        Under adapters the weights stay what they were, and no copy is needed.
        """
        if not self._objective.needs_reference:
            return
        if self._config.lora is not None:
            reference: ResponseLogits = WithoutAdapters(logits.model)
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
            every = [one for ours in answers for one in ours]
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
        found = answer_prompts(
            self._generator, self._rewards, [self._prompts[row] for row in rows], config.sampling,
            samples=config.completions, step=step,
        )  # fmt: skip
        return [found[start : start + size] for start in range(0, len(found), size)]

    def _examples(self, answers: Sequence[Answers], step: int) -> Sequence[StepExample]:
        """What a step learns from its answers."""
        config = self._config
        telling = [one for one in answers if one.differ]
        if not isinstance(config.objective, ClippedConfig):
            return make_pairs(telling, self._scorer, self._objective.sides)
        return make_groups(
            telling, self._scorer, config.objective, temperature=config.temperature,
            right_from=config.right_from, seed=config.seed + step * config.batch_size,
        )  # fmt: skip

    def save(self, step: int, folder: Path) -> None:
        """Writes the examples of the rollout's steps to come."""
        place = step % self._config.updates_per_rollout
        if place == 0 or distributed.rank() != 0:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for number, examples in enumerate(self._rollout[place:], start=place):
            rows = [recorded(one, self._objective.sides, self.temperature) for one in examples]
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
