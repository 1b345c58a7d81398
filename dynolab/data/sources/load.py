"""Loads rows from the built-in world, local files, or the Hub."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dynolab.data.chat import Message, Write, plain_writer, template_writer
from dynolab.data.probes.build import build_probes, watched_pairs
from dynolab.data.probes.built import read_built_probes
from dynolab.data.probes.flags import flag_rows, repeated
from dynolab.data.probes.overlap import TrainingTexts, disjoint
from dynolab.data.rows import Example, ProbeRow, PromptRow, answer
from dynolab.data.source_checks import dataset_commit
from dynolab.data.sources import readers
from dynolab.data.sources.config import (
    NO_WRITER,
    DataConfig,
    local_file,
    probes_file,
    resolve_data,
)
from dynolab.data.world.rows import WorldRows
from dynolab.data.world.worlds import build_any_world
from dynolab.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["DataConfig", "LoadedData", "LoadedPrompts", "load_data", "load_prompts", "resolve_data"]

MOST_HELDOUT, HELDOUT_SHARE = 100, 10
"""By default one row in ten is held out, and at most a hundred."""

ExampleOrPrompt = TypeVar("ExampleOrPrompt", Example, PromptRow)


@dataclass(frozen=True)
class LoadedPrompts:
    """Prompts to sample responses to; no prompt of `heldout` is in `train`."""

    train: list[PromptRow]
    heldout: list[PromptRow]
    counts: dict[str, float]


@dataclass(frozen=True)
class LoadedData:
    """Rows of a source; `pairs` are the training rows. `world` is None for files and the Hub."""

    pairs: list[Example]
    heldout: list[Example]
    probes: list[ProbeRow]
    counts: dict[str, float]
    world: WorldRows | None = None


def file_config(path: str | Path, chat_model: str | None = None) -> DataConfig:
    """Settings of a file in the format that its first row has, otherwise the defaults.

    **Arguments:** `chat_model`: folder or name of the model whose template writes messages.

    **Raises:** `ConfigError` for a missing or damaged file.
    """
    config = DataConfig(source="file", path=str(path))
    first = next(readers.read_records(Path(str(config.path))), {})
    kind = readers.format_of(first)
    update = {"format": kind} | ({"chat_model": chat_model} if kind == "chat" else {})
    return DataConfig.model_validate(config.model_dump(exclude_unset=True) | update)


def load_data(
    config: DataConfig | str | Path, tokenizer: PreTrainedTokenizerBase | None = None
) -> LoadedData:
    """Loads the training rows, held-out rows and probe rows of a source.

    A path stands for `file_config` of that file.

    `counts` holds how many rows were left out (records whose two transcripts share no prompt,
    held-out rows whose prompt or answer also occurs in training rows), how many answers are empty,
    how many pairs have two equal ones, and how many repeat another pair.

    **Arguments:**

    - `tokenizer`: that of `config.chat_model`, if it is set; beside a path, the one whose template
      writes chat messages.

    **Raises:** `ConfigError` for a missing file, an invalid line, a missing column, duplicate ids,
    or too few rows.
    """
    if not isinstance(config, DataConfig):
        config = file_config(config, None if tokenizer is None else tokenizer.name_or_path)
    if config.source == "world":
        world = build_any_world(config.world)
        probes = world.probes
        if config.probes is not None:
            probes = read_built_probes(probes_file(config), world.pairs, world.heldout)
        return LoadedData(world.pairs, world.heldout, probes, {}, world)
    records = list(islice(_records(config), config.rows))
    read = list(_examples(config, records, _writer(config, tokenizer)))
    examples = [example for example in read if example is not None]
    _check(examples, config)
    train, heldout = _split(examples, config)
    fresh = disjoint(heldout, train)
    counts = {
        "data/rows_without_common_prompt": float(len(read) - len(examples)),
        "data/heldout_rows_in_training": float(len(heldout) - len(fresh)),
        "data/empty_answers": float(
            sum("" in (example.chosen, example.rejected) for example in [*train, *fresh])
        ),
        "data/equal_answers": float(
            sum(example.chosen == example.rejected for example in [*train, *fresh])
        ),
        "data/duplicate_pairs": float(len(repeated(train)) + len(repeated(fresh))),
    }
    return LoadedData(train, fresh, _probes(config, records, train, fresh), counts)


def load_prompts(
    config: DataConfig, tokenizer: PreTrainedTokenizerBase | None = None
) -> LoadedPrompts:
    """Loads the prompts of a source, each with the answer to check responses against, if any.

    The answer is the fact or the solution of a built-in world, the full solution of GSM8K, or the
    `answer` or chosen answer of other formats. Arguments, counts and errors are those of
    `load_data`.
    """
    if config.source == "world":
        world = build_any_world(config.world)
        train, heldout = (
            [_world_prompt(world, pair) for pair in part] for part in (world.pairs, world.heldout)
        )
        return LoadedPrompts(train, heldout, {})
    records = list(islice(_records(config), config.rows))
    write = _writer(config, tokenizer)
    if config.format in _PROMPTS:
        read: list[PromptRow | None] = list(_prompts(config, records, write))
    else:
        read = [
            None if example is None else _example_to_prompt(example)
            for example in _examples(config, records, write)
        ]
    rows = [row for row in read if row is not None]
    _check(rows, config)
    train, heldout = _split(rows, config)
    trained = {" ".join(row.prompt.split()) for row in train}
    fresh = [row for row in heldout if " ".join(row.prompt.split()) not in trained]
    return LoadedPrompts(
        train,
        fresh,
        {
            "data/rows_without_common_prompt": float(len(read) - len(rows)),
            "data/heldout_rows_in_training": float(len(heldout) - len(fresh)),
            "data/prompts_without_answer": float(
                sum(row.answer is None for row in [*train, *fresh])
            ),
        },
    )


_PROMPTS = ("prompts", "gsm8k")


def _prompts(
    config: DataConfig, records: Sequence[dict[str, Any]], write: Write | None
) -> Iterator[PromptRow]:
    if config.format == "gsm8k":
        return readers.word_problems(records, config.origin, write)
    return readers.prompts(records, config.origin, write or _raise_no_writer)


def _examples(
    config: DataConfig, records: Sequence[dict[str, Any]], write: Write | None
) -> Iterator[Example | None]:
    if config.format == "hh":
        return readers.transcripts(records, config.origin)
    if config.format == "chat":
        return readers.conversations(records, config.origin, write or _raise_no_writer)
    if config.format in _PROMPTS:
        return (_prompt_to_example(prompt, config) for prompt in _prompts(config, records, write))
    return readers.pairs(records, config.origin)


def _prompt_to_example(row: PromptRow, config: DataConfig) -> Example:
    if row.answer is None:
        raise ConfigError(
            f"{config.origin} row {row.id}",
            None,
            "it has no answer to train on; give every row one, or only sample from these prompts",
        )
    return Example(id=row.id, prompt=row.prompt, chosen=answer(row.answer))


def _example_to_prompt(example: Example) -> PromptRow:
    return PromptRow(id=example.id, prompt=example.prompt, answer=example.chosen.strip())


def _world_prompt(world: WorldRows, example: Example) -> PromptRow:
    return PromptRow(id=example.id, prompt=example.prompt, answer=world.answer_of(example))


def _writer(config: DataConfig, tokenizer: PreTrainedTokenizerBase | None) -> Write | None:
    """The writer of chat messages; None if no setting names one."""
    if config.chat == "plain":
        return plain_writer
    if config.chat_model is None:
        return None
    if tokenizer is None:
        raise ConfigError("data.chat_model", config.chat_model, "pass its tokenizer, too")
    return template_writer(tokenizer, config.chat_model)


def _raise_no_writer(messages: Sequence[Message], row: str) -> str:
    raise ConfigError("data.chat_model", None, f"{row} holds chat messages: {NO_WRITER}")


def _probes(
    config: DataConfig, records: list[dict[str, Any]], train: list[Example], heldout: list[Example]
) -> list[ProbeRow]:
    if config.probes is not None:
        return read_built_probes(probes_file(config), train, heldout)
    if not config.probe_pairs:
        return []
    if config.format != "probe_file":
        rows = build_probes(train, heldout, pairs=config.probe_pairs, seed=config.seed)
    else:
        rows = _stored_probes(config, records, train, heldout)
    return flag_rows(rows, [*train, *heldout], TrainingTexts(train))


def _stored_probes(
    config: DataConfig, records: list[dict[str, Any]], train: list[Example], heldout: list[Example]
) -> list[ProbeRow]:
    kinds = readers.stored_kinds(records)
    by_id = {
        str(record.get("id", readers.row_name(number))): record
        for number, record in enumerate(records)
    }
    return [
        row
        for watched_pair in watched_pairs(train, heldout, config.probe_pairs)
        for row in readers.stored_probes(
            by_id[watched_pair.example.id], watched_pair, kinds, config.origin
        )
    ]


def _split(
    examples: list[ExampleOrPrompt], config: DataConfig
) -> tuple[list[ExampleOrPrompt], list[ExampleOrPrompt]]:
    """Training and held-out rows, each in the source's order."""
    count = config.heldout_rows
    if count is None:
        count = min(MOST_HELDOUT, len(examples) // HELDOUT_SHARE)
    if count > len(examples) - 2:
        raise ConfigError(
            "data.heldout_rows",
            count,
            f"the source has {len(examples)} rows and at least two must remain for training; "
            "lower it, or give more rows",
        )
    rng = random.Random(f"{config.seed}/heldout")
    heldout = set(rng.sample(range(len(examples)), count))
    train = [example for number, example in enumerate(examples) if number not in heldout]
    return train, [examples[number] for number in sorted(heldout)]


def _check(examples: Sequence[Example | PromptRow], config: DataConfig) -> None:
    if not examples:
        raise ConfigError("data", config.origin, "has no rows; give a source with rows")
    name, count = Counter(example.id for example in examples).most_common(1)[0]
    if count > 1:
        raise ConfigError(
            "data", config.origin, f"{count} rows have id {name!r}; ids must be unique"
        )


def _records(config: DataConfig) -> Iterator[dict[str, Any]]:
    return readers.with_replaced_texts(_records_as_written(config), config.replace)


def _records_as_written(config: DataConfig) -> Iterator[dict[str, Any]]:
    if config.hub_name is None:
        return readers.read_records(local_file(config))
    commit = dataset_commit("data.hub_name", config.hub_name, config.revision)
    return readers.hub_records(
        "data.hub_name", config.hub_name, config.hub_split, commit, config.hub_folder
    )
