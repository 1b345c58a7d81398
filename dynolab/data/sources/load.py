"""Loads rows from the built-in world, local files, or the Hub."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dynolab.data.chat import Write, plain_writer, template_writer
from dynolab.data.probes.build import build_probes, read_built_probes, watched_pairs
from dynolab.data.probes.overlap import bare, disjoint, flag_rows, repeated
from dynolab.data.rows import BETWEEN, Example, ProbeRow, PromptRow
from dynolab.data.source_checks import dataset_commit
from dynolab.data.sources import readers
from dynolab.data.sources.columns import OTHERWISE, form_of, format_of, read_line
from dynolab.data.sources.config import (
    DataConfig,
    RowsConfig,
    local_file,
    probes_file,
    resolve_data,
)
from dynolab.data.sources.files import hub_records, read_records, with_replaced_texts
from dynolab.data.world.rows import WorldRows
from dynolab.data.world.world import build_any_world
from dynolab.errors import ConfigError, reading
from dynolab.grouping import grouped

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["DataConfig", "LoadedData", "LoadedPrompts", "load_data", "load_prompts", "resolve_data"]

MOST_HELDOUT, HELDOUT_SHARE, LEAST = 100, 10, 2
"""By default one row in ten is held out, at least two (of four or more) and at most a hundred."""

ExampleOrPrompt = TypeVar("ExampleOrPrompt", Example, PromptRow)


@dataclass(frozen=True)
class LoadedPrompts:
    """Prompts to sample responses to; no prompt of `heldout` is in `train`."""

    train: list[PromptRow]
    heldout: list[PromptRow]
    counts: dict[str, float]


@dataclass(frozen=True)
class LoadedData:
    """Rows of a source; `pairs` are the training rows. `world` is None for files and the Hub.

    `read`: which columns are read and which are not, if there are such.
    """

    pairs: list[Example]
    heldout: list[Example]
    probes: list[ProbeRow]
    counts: dict[str, float]
    world: WorldRows | None = None
    read: str = ""

    @property
    def all_counts(self) -> dict[str, float]:
        """The counts, with the numbers of training and held-out rows."""
        pairs = {"data/train_pairs": len(self.pairs), "data/heldout_pairs": len(self.heldout)}
        return self.counts | {name: float(count) for name, count in pairs.items()}


def file_config(path: str | Path, chat_model: str | None = None) -> DataConfig:
    """Settings of a file in the format that its first row has, otherwise the defaults.

    **Arguments:** `chat_model`: folder or name of the model whose template writes messages.

    **Raises:** `ConfigError` for a missing or damaged file.
    """
    config = DataConfig(source="file", path=str(path))
    first = next(read_records(local_file(config)), {})
    with reading("data.path", str(path), OTHERWISE):
        kind = format_of(first)
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
    if config.also:
        return _mixed(config, tokenizer)
    loaded, records = _source(config, tokenizer)
    if config.probes is not None:
        probes = read_built_probes(probes_file(config), loaded.pairs, loaded.heldout)
    elif loaded.world is not None:
        probes = loaded.world.probes
    elif not config.probe_pairs:
        probes = []
    elif config.format == "probe_file":
        stored = _stored_probes(config, records, loaded.pairs, loaded.heldout)
        probes = flag_rows(stored, [*loaded.pairs, *loaded.heldout], loaded.pairs)
    else:
        probes = _built(config, loaded.pairs, loaded.heldout)
    return replace(loaded, probes=probes)


def _mixed(config: DataConfig, tokenizer: PreTrainedTokenizerBase | None) -> LoadedData:
    """Several sources: of each as many training rows as its share, ids that begin with its name."""
    parts = config.parts()
    loaded = {name: _source(part, tokenizer)[0] for name, part in parts.items()}
    total = min(len(loaded[name].pairs) / part.share for name, part in parts.items())
    train: list[Example] = []
    heldout: list[Example] = []
    counts: Counter[str] = Counter()
    for name, part in parts.items():
        rows = [_named(row, name) for row in loaded[name].pairs]
        count = round(part.share * total)
        if count < 1:
            raise ConfigError(
                f"data.also.{name}.share" if name in config.also else "data.share",
                part.share,
                f"leaves no row of {len(rows)}; raise it",
            )
        places = random.Random(f"{config.seed}/{name}").sample(range(len(rows)), count)
        train += [rows[number] for number in sorted(places)]
        heldout += [_named(row, name) for row in loaded[name].heldout]
        counts.update({**loaded[name].counts, "data/rows_beyond_share": len(rows) - count})
    fresh = disjoint(heldout, train)
    counts["data/heldout_rows_in_training"] += len(heldout) - len(fresh)
    if config.probes is not None:
        probes = read_built_probes(probes_file(config), train, fresh)
    else:
        probes = _built(config, train, fresh) if config.probe_pairs else []
    read = "; ".join(f"{name}: {source.read}" for name, source in loaded.items() if source.read)
    world = next((source.world for source in loaded.values() if source.world is not None), None)
    return LoadedData(train, fresh, probes, dict(counts), world, read)


def _named(row: Example, source: str) -> Example:
    return row.model_copy(update={"id": f"{source}{BETWEEN}{row.id}"})


def _built(config: DataConfig, train: list[Example], heldout: list[Example]) -> list[ProbeRow]:
    rows = build_probes(train, heldout, pairs=config.probe_pairs, seed=config.seed)
    return flag_rows(rows, [*train, *heldout], train)


def _source(
    config: RowsConfig, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[LoadedData, list[dict[str, Any]]]:
    """Rows of one source without probes, and of a probe file its records."""
    if config.source == "world":
        world = build_any_world(config.world)
        return LoadedData(world.pairs, world.heldout, [], {}, world), []
    records = list(islice(_records(config), config.rows))
    read = list(_examples(config, records, _writer(config, tokenizer)))
    examples = [example for example in read if example is not None]
    line = read_line(records, form_of(records[0])) if records and config.format in _PAIRS else ""
    if records and not examples:
        raise ConfigError(
            "data",
            config.origin,
            f"none of {len(records)} rows holds a prompt and its answers ({line}); name the "
            "prompt's column in data.columns",
        )
    _check(examples, config)
    train, heldout = _split(examples, config)
    fresh = disjoint(heldout, train)
    counts = {
        "rows_without_common_prompt": len(read) - len(examples),
        "heldout_rows_in_training": len(heldout) - len(fresh),
        "empty_answers": 0,
        "empty_prompts": 0,
        "equal_answers": 0,
        "duplicate_pairs": len(repeated(train)) + len(repeated(fresh)),
        "answers_without_blank": 0,
        "answers_without_end": 0,
    }
    for row in (*train, *fresh):
        for text in (row.chosen, row.rejected):
            counts["empty_answers"] += text is not None and not row.content(text).strip()
        counts["empty_prompts"] += not row.prompt.strip()
        counts["equal_answers"] += row.chosen == row.rejected
        runs_on = row.prompt[-1:].isalnum() and row.chosen[:1].isalnum()
        counts["answers_without_blank"] += runs_on
        counts["answers_without_end"] += row.turn is not None and not row.turn[1].strip()
    named = {f"data/{name}": float(count) for name, count in counts.items()}
    probe_records = records if config.format == "probe_file" else []
    return LoadedData(train, fresh, [], named, read=line), probe_records


def load_prompts(
    config: DataConfig, tokenizer: PreTrainedTokenizerBase | None = None
) -> LoadedPrompts:
    """Loads the prompts of a source, each with the answer to check responses against, if any.

    The answer is the fact or the solution of a built-in world, the full solution of GSM8K, or the
    `answer` or chosen answer of other formats. Arguments, counts and errors are those of
    `load_data`.
    """
    if config.also:
        raise ConfigError("data.also", list(config.also), "mixes pairs; give prompts in one source")
    if config.source == "world":
        world = build_any_world(config.world)

        def prompts(pairs: Sequence[Example]) -> list[PromptRow]:
            answers = map(world.answer_of, pairs)
            return [
                PromptRow(id=pair.id, prompt=pair.prompt, answer=answer)
                for pair, answer in zip(pairs, answers, strict=True)
            ]

        return LoadedPrompts(prompts(world.pairs), prompts(world.heldout), {})
    records = list(islice(_records(config), config.rows))
    write = _writer(config, tokenizer)
    rows: list[PromptRow] = []
    without_prompt = 0
    if config.format in _PROMPTS:
        rows += _PROMPTS[config.format](records, config.origin, write)
    else:
        for example in _examples(config, records, write):
            if example is None:
                without_prompt += 1
            else:
                answer = example.content(example.chosen).strip()
                turn = example.turn
                row = PromptRow(id=example.id, prompt=example.prompt, answer=answer, turn=turn)
                rows.append(row)
    _check(rows, config)
    train, heldout = _split(rows, config)
    trained = {" ".join(row.prompt.split()) for row in train}
    fresh = [row for row in heldout if " ".join(row.prompt.split()) not in trained]
    counts = {
        "data/rows_without_common_prompt": float(without_prompt),
        "data/heldout_rows_in_training": float(len(heldout) - len(fresh)),
        "data/prompts_without_answer": float(sum(row.answer is None for row in (*train, *fresh))),
    }
    return LoadedPrompts(train, fresh, counts)


_PROMPTS = {"prompts": readers.prompts, "gsm8k": readers.word_problems}
_PAIRS = ("pairs", "chat", "hh")


def _examples(
    config: RowsConfig, records: Sequence[dict[str, Any]], write: Write | None
) -> Iterator[Example | None]:
    if config.format in _PROMPTS:
        prompts = _PROMPTS[config.format](records, config.origin, write)
        return (_prompt_to_example(prompt, config) for prompt in prompts)
    read = readers.unpaired if config.format == "unpaired" else readers.pairs
    return read(records, config.origin, write)


def _prompt_to_example(row: PromptRow, config: RowsConfig) -> Example:
    if row.answer is None:
        raise ConfigError(
            f"{config.origin} row {row.id}",
            None,
            "it has no answer to train on; give every row one, or only sample from these prompts",
        )
    # GSM8K's prompts, which are made here, end without the blank before an answer.
    text = f" {row.answer}" if config.format == "gsm8k" else row.answer
    return Example(id=row.id, prompt=row.prompt, chosen=row.written(text), turn=row.turn)


def _writer(config: RowsConfig, tokenizer: PreTrainedTokenizerBase | None) -> Write | None:
    """The writer of chat messages; None if no setting names one."""
    if config.chat == "plain":
        return plain_writer
    if config.chat_model is None:
        return None
    if tokenizer is None:
        raise ConfigError("data.chat_model", config.chat_model, "pass its tokenizer, too")
    return template_writer(tokenizer, config.chat_model)


def _stored_probes(
    config: DataConfig, records: list[dict[str, Any]], train: list[Example], heldout: list[Example]
) -> list[ProbeRow]:
    kinds = readers.stored_kinds(records)
    by_id = {}
    for number, record in enumerate(records):
        by_id[str(record.get("id", readers.row_name(number)))] = record
    rows: list[ProbeRow] = []
    for pair in watched_pairs(train, heldout, config.probe_pairs):
        rows += readers.stored_probes(by_id[pair.example.id], pair, kinds, config.origin)
    return rows


def _split(
    examples: list[ExampleOrPrompt], config: RowsConfig
) -> tuple[list[ExampleOrPrompt], list[ExampleOrPrompt]]:
    """Training and held-out rows, each in the source's order; a prompt's rows stay together."""
    count = config.heldout_rows
    if count is None:
        tenth = min(MOST_HELDOUT, len(examples) // HELDOUT_SHARE)
        count = max(tenth, LEAST) if len(examples) >= 2 * LEAST else 0
    if count > len(examples) - LEAST:
        raise ConfigError(
            "data.heldout_rows",
            count,
            f"the source has {len(examples)} rows and at least two must remain for training; "
            "lower it, or give more rows",
        )
    groups = grouped((bare(example.prompt), number) for number, example in enumerate(examples))
    rng = random.Random(f"{config.seed}/heldout")
    drawn = rng.sample(list(groups.values()), min(count, len(groups)))
    heldout: set[int] = set()
    for rows in drawn:
        if len(heldout) < count and len(heldout) + len(rows) <= len(examples) - LEAST:
            heldout.update(rows)
    train = [example for number, example in enumerate(examples) if number not in heldout]
    return train, [examples[number] for number in sorted(heldout)]


def _check(examples: Sequence[Example | PromptRow], config: RowsConfig) -> None:
    if len(examples) < LEAST:
        had = f"has {len(examples) or 'no'} rows"
        raise ConfigError("data", config.origin, f"{had}; give a source with two rows or more")
    name, count = Counter(example.id for example in examples).most_common(1)[0]
    if count > 1:
        raise ConfigError(
            "data", config.origin, f"{count} rows have id {name!r}; ids must be unique"
        )


def _records(config: RowsConfig) -> Iterator[dict[str, Any]]:
    if config.hub_name is None:
        records = read_records(local_file(config))
    else:
        commit = dataset_commit("data.hub_name", config.hub_name, config.revision)
        records = hub_records(
            "data.hub_name", config.hub_name, config.hub_split, commit, config.hub_folder
        )
    if config.columns:
        records = (_renamed(record, config.columns) for record in records)
    return with_replaced_texts(records, config.replace)


def _renamed(record: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """A record whose columns have the names under which they are read."""
    missing = sorted(set(columns.values()) - set(record))
    if missing:
        raise ConfigError("data.columns", missing, f"the rows have the columns {sorted(record)}")
    record.update({name: record.pop(column) for name, column in columns.items()})
    return record
