"""Stage `data`: the study's rows, frozen, so that all later stages read the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dynolab.data.rows import write_rows
from dynolab.data.source_checks import named_path
from dynolab.data.sources.config import DataConfig, rows_line
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def freeze_data(work: Work[DataConfig]) -> dict[str, float]:
    """Reads no inputs.

    Results: `train.jsonl`, `heldout.jsonl`, `probes.jsonl`; for the built-in world also
    `corpus.jsonl` and `tokenizer/`. Returns the numbers of rows written and left out.
    """
    from dynolab.data.sources.load import load_data

    with work.shown() as progress:
        data = load_data(work.config, chat_tokenizer(work.config))
        counts = {
            "data/train_pairs": write_rows(work.output / "train.jsonl", data.pairs),
            "data/heldout_pairs": write_rows(work.output / "heldout.jsonl", data.heldout),
            "data/probe_rows": write_rows(work.output / "probes.jsonl", data.probes),
        }
        if data.world is not None:
            write_rows(work.output / "corpus.jsonl", data.world.corpus)
            data.world.tokenizer().save_pretrained(work.output / "tokenizer")
        progress.update(0, "; ".join(filter(None, (rows_line(data.counts | counts), data.read))))
    return {**data.counts, **counts, "seconds": work.seconds}


def chat_tokenizer(config: DataConfig) -> PreTrainedTokenizerBase | None:
    """The tokenizer of `chat_model`, whose template renders the data's messages; None if unset."""
    if config.chat_model is None:
        return None
    from models.language import load_tokenizer

    folder = named_path("data.chat_model", config.chat_model)
    if folder.is_dir():  # a folder's revision is its template's digest
        return load_tokenizer(folder)
    return load_tokenizer(config.chat_model, revision=config.chat_revision)


def file_for_model(path: Path, model: str | None) -> DataConfig:
    """Settings of a file of rows as a model reads them.

    The model's own template writes chat messages; a model without one gets HH's turns. Without a
    model messages have no writer.

    **Raises** `ConfigError` for a missing or damaged file, and for a tokenizer that cannot be read.
    """
    from dynolab.data.sources.load import file_config

    config = file_config(path, model)
    tokenizer = chat_tokenizer(config)
    if tokenizer is None or tokenizer.chat_template:
        return config
    settings = config.model_dump(exclude_unset=True, exclude={"chat_model"})
    return DataConfig.model_validate(settings | {"chat": "plain"})


# The hash of its content identifies a file, so its path is no part of the key.
DATA = Stage("data", 4, freeze_data, operational=frozenset({"path", "chat_model", "probes"}))
