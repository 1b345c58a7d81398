"""A reward that an untrained policy already earns in part."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch

from dynolab.data.rows import PromptRow


def low_words(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    """1 where more than half of the words have numbers below 20."""
    return [float(2 * sum(map(_low, text.split())) > len(text.split())) for text in completions]


def fourth_fails(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    if row.id == "r3":
        raise ZeroDivisionError("no words")
    return low_words(prompt, completions, row)


def same_for_most(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    """Compares completions in few groups only."""
    return (
        low_words(prompt, completions, row) if row.id in ("r1", "r7") else [0.0] * len(completions)
    )


def words_of_four(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    """How many words of four letters there are."""
    return [float(sum(len(word) == 4 for word in text.split())) for text in completions]


def some_words(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    """1 where the letters of the words are even in number: what any policy earns in part."""
    return [float(sum(map(len, text.split())) % 2 == 0) for text in completions]


def vowels(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    """The share of vowels: hardly two completions have the same."""
    return [sum(map(text.lower().count, "aeiou")) / max(1, len(text)) for text in completions]


def sometimes_nan(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    return [0.0] * (len(completions) - 1) + [float("nan")]


def one_short(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    return [0.0] * (len(completions) - 1)


def drawn(prompt: str, completions: Sequence[str], row: PromptRow) -> list[float]:
    """Random numbers of the process, as a reward of one's own may draw them."""
    return [random.random() + np.random.random() + torch.rand(()).item() for _ in completions]


def _low(word: str) -> bool:
    return word.startswith("w") and int(word[1:]) < 20
