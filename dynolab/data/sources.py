"""Where rows come from: the built-in world, local files, or the Hub."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data import readers
from dynolab.data.rows import Example, ProbeRow
from dynolab.data.world import World, WorldConfig, build_world
from dynolab.errors import ConfigError
from dynolab.hub import resolve_commit
from dynolab.probes.build import build_probes, disjoint


class DataConfig(BaseModel):
    """The pairs of a study and the probes made from them."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: Literal["world", "file", "hub"] = Field(
        "world", description="The built-in world, a local file, or a data set of the Hub."
    )
    world: WorldConfig = Field(WorldConfig(), description="Of source `world`.")
    path: str | None = Field(None, description="Of source `file`: a .jsonl or .jsonl.gz file.")
    hub_name: str | None = Field(None, description="Of source `hub`: owner/name.")
    hub_folder: str | None = Field(None, description="Folder inside the Hub data set.")
    hub_split: str = Field("train", description="Split of the Hub data set.")
    format: Literal["pairs", "hh", "probe_file"] = Field(
        "pairs",
        description="Of a file or Hub data set. `pairs`: prompt, chosen, rejected. `hh`: raw "
        "Anthropic transcripts. `probe_file`: pairs with stored responses of every kind.",
    )
    revision: str | None = Field(
        None, description="Hub: branch, tag or commit. File: the sha256 of its content."
    )
    rows: int | None = Field(None, ge=2, description="First rows to use; default: all.")
    heldout_rows: int = Field(100, ge=0, description="Of these, drawn by seed, never trained on.")
    probe_pairs: int = Field(100, ge=0, description="Pairs of either part that are probed.")
    seed: int = Field(0, ge=0, description="Of the held-out draw and of the probes.")

    @model_validator(mode="after")
    def _names_its_source(self) -> DataConfig:
        for source, field in (("file", "path"), ("hub", "hub_name")):
            given = getattr(self, field)
            if (given is not None) != (self.source == source):
                raise ConfigError(
                    f"data.{field}", given, f"give it with source: {source}, and only there"
                )
        return self

    @property
    def origin(self) -> str:
        """Short name of the source, for messages."""
        return Path(self.path).name if self.path else self.hub_name or self.source


@dataclass(frozen=True)
class LoadedData:
    """What a source holds; `pairs` are the training rows. `world` is there for the world alone."""

    pairs: list[Example]
    heldout: list[Example]
    probes: list[ProbeRow]
    counts: dict[str, float]
    world: World | None = None


def resolve_data(config: DataConfig) -> DataConfig:
    """The config with the revision that its content stands at.

    A Hub branch becomes its commit, a file the sha256 of its bytes; a revision that a file does
    not have is refused.
    """
    if config.source == "world":
        return config
    if config.hub_name is not None:
        revision = _commit(config.hub_name, config.revision)
    else:
        file = _local_file(config)
        with file.open("rb") as content:
            revision = hashlib.file_digest(content, "sha256").hexdigest()
        if config.revision not in (None, revision):
            raise ConfigError(
                "data.revision", config.revision,
                f"{file.name} now has sha256 {revision}; restore the file, or clear the revision",
            )  # fmt: skip
    return config.model_copy(update={"revision": revision})


def load_data(config: DataConfig) -> LoadedData:
    """Training rows, held-out rows and probe rows of a source.

    `counts` says what was left out: records whose two transcripts share no prompt, held-out rows
    whose prompt or answer also stands in training rows; and how many answers are empty.

    **Raises:** `ConfigError` for an unknown file, a broken line, a missing column, doubled ids, or
    too few rows.
    """
    if config.source == "world":
        world = build_world(config.world)
        return LoadedData(world.pairs, world.heldout, world.probes, {}, world)
    records = list(islice(_records(config), config.rows))
    if config.format == "hh":
        read: list[Example | None] = list(readers.transcripts(records, config.origin))
    else:
        read = list(readers.pairs(records, config.origin))
    examples = [one for one in read if one is not None]
    _check(examples, config)
    train, heldout = _split(examples, config)
    fresh = disjoint(heldout, train)
    counts = {
        "data/rows_without_common_prompt": float(len(read) - len(examples)),
        "data/heldout_rows_in_training": float(len(heldout) - len(fresh)),
        "data/empty_answers": float(
            sum("" in (one.chosen, one.rejected) for one in [*train, *fresh])
        ),
    }
    return LoadedData(train, fresh, _probes(config, records, train, fresh), counts)


def _probes(
    config: DataConfig, records: list[dict[str, Any]], train: list[Example], heldout: list[Example]
) -> list[ProbeRow]:
    if not config.probe_pairs:
        return []
    if config.format != "probe_file":
        return build_probes(train, heldout, pairs=config.probe_pairs, seed=config.seed)
    by_id = {
        str(record.get("id", readers.row_name(number))): record
        for number, record in enumerate(records)
    }
    trained = frozenset(one.chosen for one in train)
    rows: list[ProbeRow] = []
    for one in train[: config.probe_pairs]:
        rows += readers.stored_probes(by_id[one.id], one, "train", trained)
    for one in heldout[: config.probe_pairs]:
        rows += readers.stored_probes(by_id[one.id], one, "heldout", trained)
    return rows


def _split(examples: list[Example], config: DataConfig) -> tuple[list[Example], list[Example]]:
    """Training and held-out rows, each in the source's order."""
    if config.heldout_rows > len(examples) - 2:
        raise ConfigError(
            "data.heldout_rows", config.heldout_rows,
            f"the source has {len(examples)} rows and at least two must stay to train on; "
            "lower it, or give more rows",
        )  # fmt: skip
    rng = random.Random(f"{config.seed}/heldout")
    out = set(rng.sample(range(len(examples)), config.heldout_rows))
    train = [one for number, one in enumerate(examples) if number not in out]
    return train, [examples[number] for number in sorted(out)]


def _check(examples: list[Example], config: DataConfig) -> None:
    if not examples:
        raise ConfigError("data", config.origin, "holds no rows; give a source with rows")
    name, count = Counter(one.id for one in examples).most_common(1)[0]
    if count > 1:
        raise ConfigError(
            "data", config.origin, f"{count} rows have id {name!r}; ids must be unique"
        )


def _records(config: DataConfig) -> Iterator[dict[str, Any]]:
    if config.hub_name is None:
        return readers.read_records(_local_file(config))
    from datasets import load_dataset

    table = load_dataset(
        config.hub_name,
        data_dir=config.hub_folder,
        split=config.hub_split,
        revision=_commit(config.hub_name, config.revision),
    )
    return (dict(record) for record in table)


def _local_file(config: DataConfig) -> Path:
    file = Path(config.path or "").expanduser()
    if not file.is_file():
        raise ConfigError("data.path", config.path, "no such file; name a .jsonl or .jsonl.gz file")
    return file


def _commit(name: str, revision: str | None) -> str:
    return resolve_commit("dataset", name, revision or "main", field="data.hub_name")
