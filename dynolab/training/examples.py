"""Loads and checks the rows of a training; stages call it before they start ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dynolab.data.batches import REJECTED
from dynolab.data.encode import EncodedExample, Encoder
from dynolab.data.rows import Example, PromptRow, read_rows
from dynolab.errors import ConfigError
from dynolab.objectives import build_objective
from dynolab.objectives.kto import KTOConfig
from dynolab.objectives.registry import AnyConfig
from dynolab.objectives.sft import SFTConfig
from dynolab.objectives.sppo import reads_wins
from dynolab.training.config import LoopConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def training_encoder(
    config: LoopConfig, tokenizer: PreTrainedTokenizerBase, context: int
) -> Encoder:
    """Encoder of a run's rows; `context` is the model's, in tokens."""
    return Encoder(tokenizer, min(config.max_length or context, context), config.overlong)


def load_examples(file: Path, encoder: Encoder, objective: AnyConfig) -> list[EncodedExample]:
    """Loads, checks and encodes the rows of a file for an objective.

    **Raises** `ConfigError` for rows that lack a field the objective reads, for overlong rows under
    `overlong: error`, and if no row is left.
    """
    rows = list(read_rows(file, Example))
    if isinstance(objective, SFTConfig):  # of labelled rows the good ones alone
        good = (row for row in rows if row.label is not False)
        rows = [row.model_copy(update={"label": None}) if row.label else row for row in good]
    check_rows(rows, objective)
    return encoder.examples(rows)


def load_prompts(
    file: Path, encoder: Encoder, max_new_tokens: int
) -> list[tuple[PromptRow, tuple[int, ...]]]:
    """Loads and encodes the prompts of a file; keeps those that leave room for a completion.

    **Raises** `ConfigError` for overlong prompts under `overlong: error`, and if no prompt is left.
    """
    rows = list(read_rows(file, PromptRow))
    try:
        encoded = [
            (row, encoder.prompt(row.id, row.prompt, max_new_tokens, row.turn)) for row in rows
        ]
    except ConfigError as error:
        if error.field != "overlong":
            raise
        raise ConfigError(
            error.field,
            error.value,
            f"{error.remedy}, or lower max_new_tokens = {max_new_tokens}, the room kept for a "
            "completion",
        ) from error
    prompts = [(row, tokens) for row, tokens in encoded if tokens is not None]
    if not prompts:
        raise ConfigError(
            "data",
            f"0 of {len(rows)} prompts kept",
            "give prompts that leave room for max_new_tokens in the model's context, or set "
            "overlong: truncate_left",
        )
    return prompts


def check_rows(rows: Sequence[Example], objective: AnyConfig) -> None:
    """Raises ConfigError for rows that lack the rejected answer or `wins` the objective reads."""
    labels = [row.label for row in rows]
    if isinstance(objective, KTOConfig):
        if set(labels) != {True, False}:
            raise ConfigError(
                "data.label",
                next(iter(set(labels)), None),
                f"objective {objective.name} needs rows with a label (data.format: unpaired), "
                "some true and some false",
            )
    elif any(label is not None for label in labels):
        raise ConfigError(
            "data.format",
            "unpaired",
            f"objective {objective.name} compares two answers; give pairs, or use kto",
        )
    else:
        check_sides(rows, build_objective(objective).sides, objective.name)
    if rows and all(row.weight == 0 for row in rows):
        raise ConfigError("data.weight", 0.0, "of every row is 0; give some rows a weight above it")
    lacking = [row.id for row in rows if row.wins is None] if reads_wins(objective) else []
    if lacking:
        raise ConfigError(
            "data.wins",
            None,
            f"objective {objective.name} with labels: soft needs `wins` in every row, the "
            "probabilities that its two answers beat one of the policy's; "
            f"{len(lacking)} rows have none, the first is {lacking[0]}",
        )


def check_sides(rows: Sequence[Example], sides: Collection[int], objective: str) -> None:
    """Raises ConfigError for rows without the rejected answer that the objective needs."""
    lacking = [row.id for row in rows if row.rejected is None] if REJECTED in sides else []
    if lacking:
        raise ConfigError(
            "data.rejected",
            None,
            f"objective {objective} needs a rejected answer in every row; "
            f"{len(lacking)} rows have none, the first is {lacking[0]}",
        )
