"""A world of two strategies: every prompt is solved by one of them, and nothing tells which.

A prompt shows letters: `lock c a f ?`. It is solved either by reversing them, `turn f a c .`, or by
replacing each by the next letter of the alphabet, `shift d b g .`. The base corpus shows both on
other prompts, the first more often (`habit`) and each with slips, so that a model trained on it has
that habit, whatever the prompt. It is least sure of the strategy's name. As nothing in a prompt
tells its strategy, a policy can gain on prompts that it has not seen only by carrying strategies
out better, or by one strategy at the cost of the other: what raises its first answer then takes
away what several answers would find.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.probes.build import build_probes
from dynolab.data.rows import Example, spaced
from dynolab.data.world.answers import quotas
from dynolab.data.world.rows import PROBED, WorldRows
from dynolab.errors import ConfigError

LETTERS = "abcdefghijkl"
SHOWN = 3
"""Letters of a prompt, all different."""
HABIT, OTHER = "turn", "shift"
PROMPTS = [*permutations(LETTERS, SHOWN)]


class StrategiesConfig(BaseModel):
    """Sizes and seed of the world of strategies, and how the two are mixed."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Literal["strategies"] = "strategies"
    seed: int = Field(default=0, ge=0)
    train_pairs: int = Field(default=120, ge=2)
    heldout_pairs: int = Field(default=72, ge=2)
    corpus_rows: int = Field(
        default=9600, ge=8, description="Rows that the base model is trained on."
    )
    habit: float = Field(
        default=0.8, gt=0, lt=1, description="Share of the base corpus that reverses the letters."
    )
    solved_by_habit: float = Field(
        default=0.6, gt=0, lt=1, description="Share of prompts that reversing solves."
    )
    slips: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="Chance that a letter of the base corpus is drawn at random.",
    )

    @model_validator(mode="after")
    def _enough_prompts(self) -> StrategiesConfig:
        most = len(PROMPTS) // 2
        if self.train_pairs + self.heldout_pairs > most:
            raise ConfigError(
                "world.train_pairs",
                self.train_pairs,
                f"with heldout_pairs at most {most}, so that the base corpus has other prompts",
            )
        return self


def build_strategies(config: StrategiesConfig) -> WorldRows:
    """Generates the world; both splits have the same share of prompts that the habit solves."""
    rng = random.Random(f"{config.seed}/strategies")
    prompts = rng.sample(PROMPTS, len(PROMPTS))
    ends = (config.train_pairs, config.train_pairs + config.heldout_pairs)
    train = _pairs("train", prompts[: ends[0]], config, rng)
    heldout = _pairs("heldout", prompts[ends[0] : ends[1]], config, rng)
    return WorldRows(
        corpus=_corpus(prompts[ends[1] :], config),
        pairs=train,
        heldout=heldout,
        probes=build_probes(train, heldout, pairs=PROBED, seed=config.seed),
        words=["lock", "?", HABIT, OTHER, ".", *LETTERS],
    )


def carried_out(strategy: str, letters: Sequence[str]) -> list[str]:
    """What a strategy makes of a prompt's letters."""
    if strategy == HABIT:
        return [*reversed(letters)]
    return [LETTERS[(LETTERS.index(letter) + 1) % len(LETTERS)] for letter in letters]


def ways(prompt: str, answers: Sequence[str]) -> dict[str, int]:
    """How many answers name each strategy, rightly carried out or not; empty of other worlds."""
    letters = prompt.split()[1:-1]
    if len(letters) != SHOWN or prompt != _prompt(letters) or not {*letters} <= {*LETTERS}:
        return {}
    named = [answer.split()[:1] for answer in answers]
    return {strategy: named.count([strategy]) for strategy in (HABIT, OTHER)}


def _pairs(
    split: str, prompts: Sequence[Sequence[str]], config: StrategiesConfig, rng: random.Random
) -> list[Example]:
    """Pairs of the strategy that solves a prompt and the other one, both without slips."""
    counts = quotas(len(prompts), [config.solved_by_habit, 1 - config.solved_by_habit])
    solved_by = [(HABIT, OTHER)] * counts[0] + [(OTHER, HABIT)] * counts[1]
    rng.shuffle(solved_by)
    return [
        Example(
            id=f"{split}-{number:04d}",
            prompt=_prompt(letters),
            chosen=_answer(right, carried_out(right, letters)),
            rejected=_answer(wrong, carried_out(wrong, letters)),
        )
        for number, (letters, (right, wrong)) in enumerate(zip(prompts, solved_by, strict=True))
    ]


def _corpus(prompts: Sequence[Sequence[str]], config: StrategiesConfig) -> list[Example]:
    rng = random.Random(f"{config.seed}/strategies/corpus")
    rows = []
    for number in range(config.corpus_rows):
        letters = rng.choice(prompts)
        strategy = HABIT if rng.random() < config.habit else OTHER
        written = [
            rng.choice(LETTERS) if rng.random() < config.slips else letter
            for letter in carried_out(strategy, letters)
        ]
        rows.append(
            Example(
                id=f"base-{number:05d}", prompt=_prompt(letters), chosen=_answer(strategy, written)
            )
        )
    return rows


def _prompt(letters: Sequence[str]) -> str:
    return f"lock {' '.join(letters)} ?"


def _answer(strategy: str, letters: Sequence[str]) -> str:
    return spaced(f"{strategy} {' '.join(letters)} .")
