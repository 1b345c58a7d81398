"""A world of sums in several steps, whose wrong answers share most of their tokens with right ones.

A prompt asks for a sum, `add 7 9 and 4 5 ?`, and its answer works it out column by column, from the
last: `then 9 next 5 next makes 4 carry then 7 then 4 next makes 2 carry so 1 2 4 .` The words
between (`then` or `next`) are free. Numbers have five different digits, whose sums are soon
learned. The base corpus forgets carries now and then, and a model trained on it does so, too. What
a wrong answer got wrong is one or two of its tokens; all others stand in right answers as well, and
what pushes them down there can push right answers down.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.probes.build import build_probes
from dynolab.data.rows import Example, spaced
from dynolab.data.world.rows import PROBED, WorldRows
from dynolab.errors import ConfigError

FREE = ("then", "next")
"""Words that stand anywhere and mean nothing."""
MAKES = "makes"
CARRY, RESULT = "carry", "so"
DIGITS, SUMMED = "0123456789", "24579"
"""Those of results, and those of the numbers that are added."""
Numbers = tuple[int, int]


class SumsConfig(BaseModel):
    """Sizes and seed of the world of sums."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Literal["sums"] = "sums"
    seed: int = Field(default=0, ge=0)
    train_pairs: int = Field(default=120, ge=2)
    heldout_pairs: int = Field(default=72, ge=2)
    corpus_rows: int = Field(
        default=9600, ge=8, description="Rows that the base model is trained on."
    )
    columns: int = Field(default=2, ge=2, le=4, description="Digits of each number.")
    forgotten: float = Field(
        default=0.15, ge=0, lt=1, description="Chance that the base corpus forgets a carry."
    )

    @model_validator(mode="after")
    def _enough_sums(self) -> SumsConfig:
        most = len(SUMMED) ** (2 * self.columns) // 2
        if self.train_pairs + self.heldout_pairs > most:
            raise ConfigError(
                "world.train_pairs",
                self.train_pairs,
                f"with heldout_pairs at most {most}, half the sums of {self.columns} columns",
            )
        return self


@dataclass(frozen=True)
class Sums(WorldRows):
    """The world of sums."""

    def answer_of(self, example: Example) -> str:
        """The result alone: every way to it is right."""
        return example.chosen[example.chosen.index(RESULT) :]


def build_sums(config: SumsConfig) -> Sums:
    """Generates the world; every asked sum carries at least once."""
    rng = random.Random(f"{config.seed}/sums")
    drawn: dict[Numbers, None] = {}
    while len(drawn) < config.train_pairs + config.heldout_pairs:
        numbers = _numbers(config, rng)
        if carries(numbers, config.columns):
            drawn[numbers] = None
    prompts = [*drawn]
    train = _pairs("train", prompts[: config.train_pairs], config, rng)
    heldout = _pairs("heldout", prompts[config.train_pairs :], config, rng)
    return Sums(
        corpus=_corpus(drawn, config),
        pairs=train,
        heldout=heldout,
        probes=build_probes(train, heldout, pairs=PROBED, seed=config.seed),
        words=["add", "and", "?", *FREE, MAKES, CARRY, RESULT, ".", *DIGITS],
    )


def carries(numbers: Numbers, columns: int) -> list[int]:
    """The columns, from the last, whose digits carry into the next one."""
    first, second = numbers
    return [
        column
        for column in range(columns)
        if first % 10 ** (column + 1) + second % 10 ** (column + 1) >= 10 ** (column + 1)
    ]


def worked_out(
    numbers: Numbers, columns: int, rng: random.Random, forgotten: frozenset[int] = frozenset()
) -> str:
    """A sum worked out column by column, and its result.

    **Arguments:** `forgotten`: columns whose carry is neither written down nor added.
    """
    words, digits, carry = [], [], 0
    for column in range(columns):
        a, b = (number // 10**column % 10 for number in numbers)
        total = a + b + carry
        carry = int(total >= 10 and column not in forgotten)
        for word in (str(a), str(b), MAKES):
            words += [rng.choice(FREE), word]
        words.append(str(total % 10))
        words += [CARRY] * carry
        digits.append(str(total % 10))
    words += [RESULT, *(["1"] * carry), *reversed(digits), "."]
    return spaced(" ".join(words))


def _numbers(config: SumsConfig, rng: random.Random) -> Numbers:
    first, second = (int("".join(rng.choices(SUMMED, k=config.columns))) for _ in range(2))
    return first, second


def _prompt(numbers: Numbers, columns: int) -> str:
    first, second = (" ".join(f"{number:0{columns}d}") for number in numbers)
    return f"add {first} and {second} ?"


def _pairs(
    split: str, pairs: Sequence[Numbers], config: SumsConfig, rng: random.Random
) -> list[Example]:
    """Pairs of a right answer and one that forgets a carry."""
    rows = []
    for number, numbers in enumerate(pairs):
        slip = frozenset([rng.choice(carries(numbers, config.columns))])
        rows.append(
            Example(
                id=f"{split}-{number:04d}",
                prompt=_prompt(numbers, config.columns),
                chosen=worked_out(numbers, config.columns, rng),
                rejected=worked_out(numbers, config.columns, rng, slip),
            )
        )
    return rows


def _corpus(pairs: dict[Numbers, None], config: SumsConfig) -> list[Example]:
    """Sums that no prompt asks for."""
    rng = random.Random(f"{config.seed}/sums/corpus")
    rows: list[Example] = []
    while len(rows) < config.corpus_rows:
        numbers = _numbers(config, rng)
        if numbers in pairs:
            continue
        carried = carries(numbers, config.columns)
        slips = frozenset(column for column in carried if rng.random() < config.forgotten)
        rows.append(
            Example(
                id=f"base-{len(rows):05d}",
                prompt=_prompt(numbers, config.columns),
                chosen=worked_out(numbers, config.columns, rng, slips),
            )
        )
    return rows
