"""Samples answers from a stage's model with the training's sampling settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from dynolab.data.encode import Encoder, Overlong
from dynolab.data.rows import Split
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.rollouts.decoding import ModelGenerator
from dynolab.rollouts.generator import SampleConfig
from dynolab.rollouts.rewards import RewardConfig, Rewards
from dynolab.statistics import Interval
from dynolab.training.config import GroupTrainConfig
from dynolab.training.examples import load_prompts
from dynolab.training.rollout import Answers, answer_prompts
from tasks.runtime.work import StageConfig, Work
from tasks.shared.policies import load_model


class AnsweringConfig(StageConfig):
    """How answers are sampled and rewarded; fields are named as in `GroupTrainConfig`."""

    rewards: tuple[RewardConfig, ...] = GroupTrainConfig().rewards
    right_from: float = 1.0
    temperature: float = Field(1.0, gt=0)
    max_new_tokens: int = Field(64, ge=1)
    stop: tuple[str, ...] = ()
    sample_batch_size: int = Field(64, ge=1)
    overlong: Overlong = "error"
    max_length: int | None = None
    seed: int = Field(0, ge=0)

    @classmethod
    def of(cls, training: GroupTrainConfig) -> dict[str, Any]:
        """The training's values of these fields, by name."""
        return {name: getattr(training, name) for name in AnsweringConfig.model_fields}

    @property
    def sampling(self) -> SampleConfig:
        """The sampling settings."""
        return SampleConfig(
            temperature=self.temperature,
            max_new_tokens=self.max_new_tokens,
            batch_size=self.sample_batch_size,
            seed=self.seed,
            stop=self.stop,
        )


@dataclass(frozen=True)
class Answerer:
    """The model of input `model`, loaded to answer the prompts of input `prompts`."""

    logits: ResponseLogits
    tokenizer: Any
    config: AnsweringConfig

    @classmethod
    def of(cls, work: Work[Any]) -> Answerer:
        """Loads the model."""
        model, tokenizer = load_model(work.input_folder("model", "model"))
        return cls(ResponseLogits(model), tokenizer, work.config)

    @property
    def pad_id(self) -> int:
        """The padding token."""
        return int(self.tokenizer.pad_token_id)

    def answer(
        self, work: Work[Any], split: Split, *, samples: int, step: int, prompts: int | None
    ) -> list[Answers]:
        """Samples answers to a split's first prompts and rewards them; empty for an empty split."""
        from models.language import context_length

        config, file = self.config, work.input_folder("prompts") / f"{split}.jsonl"
        if not file.stat().st_size:
            return []
        model: Any = self.logits.model
        context = context_length(model)
        length = min(config.max_length or context, context)
        encoder = Encoder(self.tokenizer, length, config.overlong)
        return answer_prompts(
            ModelGenerator(model, self.tokenizer, length),
            Rewards(config.rewards),
            load_prompts(file, encoder, config.max_new_tokens)[:prompts],
            config.sampling,
            samples=samples,
            step=step,
        )


def log_figures(work: Work[Any], figures: Mapping[str, Interval], group: str) -> dict[str, float]:
    """Writes figures with their intervals over prompts to `figures.json`, and logs them to MLflow.

    **Returns** the means.
    """
    file = work.output / "figures.json"
    file.write_text(
        json.dumps({name: figure.as_dict() for name, figure in figures.items()}, indent=1)
    )
    means = {name: figure.mean for name, figure in figures.items() if figure.n}
    work.tracker.log_metrics({f"{group}/{name}": value for name, value in means.items()}, 0)
    work.tracker.log_artifact(file, group)
    return means
