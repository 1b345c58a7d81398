"""How much is trained on each side of the comparison."""

from __future__ import annotations

BATCH = 4
"""Rows, pairs or prompts of one step."""
COMPLETIONS, NEW_TOKENS = 8, 32
"""Of each prompt, where groups are sampled."""
WARM_UP = 3
METHODS = ("dpo", "sft", "grpo")
MODELS = ("tinystories", "70m")


def steps_of(method: str, model: str) -> int:
    """Steps of one run, those of the warm-up included."""
    if model == "tinystories":
        return 15
    return 6 if method == "grpo" else 8
