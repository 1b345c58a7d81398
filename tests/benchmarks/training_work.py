"""How much is trained on each side of the comparison."""

from __future__ import annotations

from pathlib import Path

BATCH = 4
"""Rows, pairs or prompts of one step."""
RANKS_BATCH = 16
"""The same where ranks share a step: the built-in study's."""
COMPLETIONS, NEW_TOKENS = 8, 32
"""Of each prompt, where groups are sampled."""
WARM_UP = 2
STEPS = {
    ("dpo", "tinystories"): 15,
    ("sft", "tinystories"): 15,
    ("grpo", "tinystories"): 10,
    ("dpo", "70m"): 5,
    ("sft", "70m"): 5,
}
"""Steps of one run of a method on a model, those of the warm-up included."""


def rows_of(folder: Path, method: str, model: str) -> Path:
    """The rows or prompts of one epoch, in the order in which they are trained."""
    return folder / f"{method}-{model}.jsonl"
