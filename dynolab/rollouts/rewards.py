"""Rewards: plain callables `(prompt, completions, row) -> one number per completion`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import chain
from numbers import Real
from statistics import fmean, pstdev
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.rows import PromptRow
from dynolab.data.world import lexicon
from dynolab.errors import ConfigError
from dynolab.functions import ALLOWED, Sources, named_function, running, sources_of

Reward = Callable[[str, Sequence[str], PromptRow], Sequence[float]]

FINAL = "####"
"""Precedes the final answer of a GSM8K solution (Cobbe et al., arXiv 2110.14168)."""

# A minus is a sign only if no word, dot or closing bracket precedes it: "10-5" ends in 5.
# A comma is a thousands separator only before three digits: "3,4" is two numbers, "3,400" one.
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w).])(?:[-−]\$?|\$[-−]))?"
    r"(?P<digits>(?:\d{1,3}(?:,\d{3})+(?![\d])|\d+)(?:\.\d+)?|(?<!\d)\.\d+)",
    re.ASCII,
)


class Rewards:
    """The weighted sum of rewards, `r = Σ_j w_j r_j`, with every term's values checked.

    **Raises:** `ConfigError` for an unknown reward, and for a function outside the modules that
    the environment allows, before importing it.
    """

    def __init__(self, configs: Sequence[RewardConfig]) -> None:
        if not configs:
            raise ConfigError("rewards", [], "name at least one reward")
        self._parts = [
            (
                config.name,
                config.weight,
                named_function("reward", config.name, BUILT_IN, config.source_sha256),
            )
            for config in configs
        ]

    def __call__(self, prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
        """The reward of every completion.

        **Raises:** `ConfigError` naming a term that did not return one finite number per
        completion.
        """
        total = [0.0] * len(completions)
        for name, weight, reward in self._parts:
            with running("reward", name, f"fails on row {row.id}"):
                rewards = reward(prompt, completions, row)
            values = checked(name, rewards, len(completions), row.id)
            total = [sum_ + weight * value for sum_, value in zip(total, values, strict=True)]
        return total


def checked(name: str, values: object, count: int, row: str) -> list[float]:
    """Converts a reward's values to floats.

    **Raises:** `ConfigError` unless there is one finite number per completion.
    """
    field, rule = f"reward {name} of row {row}", "must return one finite number per completion"
    tolist = getattr(values, "tolist", None)  # arrays and tensors
    listed = tolist() if tolist is not None else values
    if not isinstance(listed, Sequence) or isinstance(listed, str) or len(listed) != count:
        size = f"{len(listed)} values" if isinstance(listed, Sequence) else type(values).__name__
        raise ConfigError(field, size, f"{rule}, here {count}")
    for value in listed:
        if not isinstance(value, Real) or not math.isfinite(value):
            raise ConfigError(field, value, rule)
    return [float(value) for value in listed]


def reward_metrics(groups: Sequence[Sequence[float]]) -> dict[str, float]:
    """Mean and standard deviation of the rewards, and the number of groups with equal rewards."""
    every = list(chain.from_iterable(groups))
    return {
        "rollout/reward": fmean(every),
        "rollout/reward_std": pstdev(every),
        "rollout/equal_groups": float(sum(min(group) == max(group) for group in groups)),
    }


def exact(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    """1 if the completion equals the row's answer, ignoring surrounding whitespace."""
    answer = _answer("exact", row).strip()
    return [float(text.strip() == answer) for text in completions]


def ends_with(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    """1 if the completion ends with the row's answer, ignoring surrounding whitespace."""
    answer = _answer("ends_with", row).strip()
    return [float(text.strip().endswith(answer)) for text in completions]


def word_overlap(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    """F1 of the words that a completion shares with the row's answer, from 0 to 1: ROUGE-1 (Lin,
    2004) of lower-case words, each counted as often as both have it."""
    truth = _words(_answer("word_overlap", row))
    shares = []
    for text in completions:
        words = _words(text)
        shares.append(2 * (words & truth).total() / max(words.total() + truth.total(), 1))
    return shares


def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.lower()))


def world_answer(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    """1 if a completion states exactly one fact about the entity that the built-in world's
    question names, and it is the fact asked for with the row's value."""
    question = lexicon.asked(prompt)
    if question is None:
        raise ConfigError(
            "reward world_answer",
            prompt,
            "not a question of the built-in world; use another reward for this data",
        )
    attribute, entity = question
    truth = [lexicon.Fact(entity, attribute, _answer("world_answer", row))]
    return [float(lexicon.facts_in(text, frozenset({entity})) == truth) for text in completions]


def world_form(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    """1 if a completion has the form of the built-in world's answers, right or wrong."""
    return [float(lexicon.in_form(text)) for text in completions]


def world_style(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    """How far a completion uses the style words of the built-in world's chosen answers, from 0 to
    1; 0 for a completion of another form."""
    styles = [lexicon.style_in(text) for text in completions]
    return [0.0 if style is None else lexicon.preference(style) for style in styles]


def gsm8k(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    """1 if the completion's final number equals that of the row's answer."""
    answer = _answer("gsm8k", row)
    truth = final_number(answer)
    if truth is None:
        raise ConfigError(
            f"answer of row {row.id}", answer, "reward gsm8k needs a number in every answer"
        )
    return [float(final_number(text) == truth) for text in completions]


def gsm8k_form(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    """1 if a completion ends with `#### ` and a number, and has `####` once."""
    return [float(text.count(FINAL) == 1 and bool(_LAST_LINE.search(text))) for text in completions]


def think_form(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    """1 if a completion is `<think>…</think><answer>…</answer>` (DeepSeek-R1,
    arXiv 2501.12948, §2.2.2), each tag once."""
    return [
        float(all(text.count(tag) == 1 for tag in _TAGS) and bool(_THOUGHT.fullmatch(text)))
        for text in completions
    ]


def final_number(text: str) -> Decimal | None:
    """The final number of a solution; None if it has none.

    It is the first number after the first `####`, so that text after the answer is ignored;
    without that mark it is the last number of the text. Ignores currency signs, units, thousands
    separators and trailing zeros.
    """
    _, mark, answer = text.partition(FINAL)
    numbers = list(_NUMBER.finditer(answer if mark else text))
    return _value(numbers[0 if mark else -1]) if numbers else None


def _value(match: re.Match[str]) -> Decimal:
    size = Decimal(match["digits"].replace(",", ""))
    return -size if match["sign"] else size


_LAST_LINE = re.compile(r"^#### ?-?\$?[\d,]*\.?\d+\s*\Z", re.MULTILINE)
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_THOUGHT = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL)

BUILT_IN: dict[str, Reward] = {
    reward.__name__: reward
    for reward in (
        exact,
        ends_with,
        word_overlap,
        world_answer,
        world_form,
        world_style,
        gsm8k,
        gsm8k_form,
        think_form,
    )
}


class RewardConfig(BaseModel):
    """One term of the weighted reward."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(
        description=f"{', '.join(BUILT_IN)}, or the dotted path of a function in a module that "
        f"{ALLOWED} lists."
    )
    weight: float = Field(1.0, allow_inf_nan=False)
    source_sha256: Sources | None = Field(
        default=None,
        exclude_if=lambda digests: digests is None,
        description="sha256 of a function's file and of those of its folder that it imports; "
        "default: as they are.",
    )

    @model_validator(mode="after")
    def _pin_sources(self) -> Self:
        if self.source_sha256 is None:
            digests = sources_of(self.name, BUILT_IN)
            object.__setattr__(self, "source_sha256", digests)  # the config is frozen
        return self


def _answer(reward: str, row: PromptRow) -> str:
    if row.answer is None:
        raise ConfigError(
            f"answer of row {row.id}", None, f"reward {reward} needs an answer in every row"
        )
    return row.answer
