"""Stages `data`, `prompts` and `probe-set`: a study's rows, frozen, so that all read the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from dynolab.data.rows import Example, ProbeRow, read_rows, write_rows
from dynolab.data.source_checks import named_path
from dynolab.data.sources.config import DataConfig, rows_line
from dynolab.data.sources.load import file_config, load_data, load_prompts
from dynolab.endpoint.config import PATIENCE
from dynolab.probes.making.probe_set import ProbeSetConfig, build_probe_set
from dynolab.probes.making.written import Policy, has_text
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.endpoint import StageEndpoint
from tasks.shared.policies import load_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def freeze_data(work: Work[DataConfig]) -> dict[str, float]:
    """Reads no inputs.

    Results: `train.jsonl`, `heldout.jsonl`, `probes.jsonl`; for the built-in world also
    `corpus.jsonl` and `tokenizer/`. Returns the numbers of rows written and left out.
    """
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
    config = file_config(path, model)
    tokenizer = chat_tokenizer(config)
    if tokenizer is None or tokenizer.chat_template:
        return config
    settings = config.model_dump(exclude_unset=True, exclude={"chat_model"})
    return DataConfig.model_validate(settings | {"chat": "plain"})


# The hash of its content identifies a file, so its path is no part of the key.
DATA = Stage("data", 4, freeze_data, operational=("path", "chat_model", "probes"))


def freeze_prompts(work: Work[DataConfig]) -> dict[str, float]:
    """Reads no inputs.

    Results: `train.jsonl` and `heldout.jsonl`, prompts with the answers to check completions by.
    """

    with work.shown():
        prompts = load_prompts(work.config, chat_tokenizer(work.config))
        counts = {
            "data/train_prompts": write_rows(work.output / "train.jsonl", prompts.train),
            "data/heldout_prompts": write_rows(work.output / "heldout.jsonl", prompts.heldout),
        }
    return {**prompts.counts, **counts, "seconds": work.seconds}


PROMPTS = Stage(
    "prompts",
    2,
    freeze_prompts,
    operational=("path", "chat_model", "probes", "probes_revision"),
)


ROWS = ("train.jsonl", "heldout.jsonl")


def make_probe_set(work: Work[ProbeSetConfig]) -> dict[str, float]:
    """Reads inputs `data` and, if there is one, `model`, the untrained policy.

    Results: `probes.jsonl`, the rows; `missing.jsonl`, the rows that could not be made, with the
    reason; and the data's `train.jsonl` and `heldout.jsonl`, so that other stages can read this
    result in place of the data stage's. To watch the rows in another study with the same data
    settings and seed, set its `data.probes` to the file.

    `StageEndpoint` caches the writer's answers.
    """

    config, data = work.config, work.input_folder("data")
    endpoint = StageEndpoint(work, config.writer if config.writer_kinds else None, usable=has_text)
    policy = None
    if (source := work.inputs.get("model")) is not None:
        policy = Policy(*load_model(work.input_folder("model", "model")), source.short)
    with endpoint.shown():
        try:
            built = build_probe_set(
                config,
                *(list(read_rows(data / name, Example)) for name in ROWS),
                extra=list(read_rows(data / "probes.jsonl", ProbeRow)),
                policy=policy,
                endpoint=endpoint.endpoint,
                on_progress=endpoint.on_progress,
            )
        finally:
            spent = endpoint.spent("writer")
            work.tracker.log_metrics(spent, 0)
        work.write_tables(probes=built.rows, missing=built.missing)
        for name in ROWS:
            shutil.copyfile(data / name, work.output / name)
    work.log_tables(missing=built.missing)
    return {**built.counts, **spent, "seconds": work.seconds}


# Timeouts and retries change when a writer answers, not what it answers.
PROBE_SET = Stage(
    "probe-set",
    2,
    make_probe_set,
    operational=frozenset(f"writer.{name}" for name in PATIENCE),
)
