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

from pydantic import BaseModel, ConfigDict, Field

from dynolab.data import readers
from dynolab.data.rows import Example, ProbeRow
from dynolab.data.world import World, WorldConfig, build_world
from dynolab.errors import ConfigError
from dynolab.probes.build import build_probes, disjoint

BUILTIN = "builtin"


class DataConfig(BaseModel):
    """The pairs of a study and the probes made from them."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: str = Field(
        BUILTIN, description="`builtin`, a .jsonl or .jsonl.gz file, or a Hub data set."
    )
    world: WorldConfig = Field(WorldConfig(), description="Of the built-in source.")
    format: Literal["pairs", "hh", "probe_file"] = Field(
        "pairs",
        description="`pairs`: prompt, chosen, rejected. `hh`: raw Anthropic transcripts. "
        "`probe_file`: pairs with stored responses of every kind. For all but the built-in source.",
    )
    revision: str | None = Field(
        None, description="Hub: branch, tag or commit. File: the sha256 of its content."
    )
    hub_folder: str | None = Field(None, description="Folder inside the Hub data set.")
    hub_split: str = Field("train", description="Split of the Hub data set.")
    rows: int | None = Field(None, ge=2, description="First rows to use; default: all.")
    heldout_rows: int = Field(100, ge=0, description="Of these, drawn by seed, never trained on.")
    probe_pairs: int = Field(100, ge=0, description="Pairs of either part that are probed.")
    seed: int = Field(0, ge=0, description="Of the held-out draw and of the probes.")


@dataclass(frozen=True)
class LoadedData:
    """What a source holds. `world` is there for the built-in source alone."""

    train: list[Example]
    heldout: list[Example]
    probes: list[ProbeRow]
    counts: dict[str, float]
    world: World | None = None


def resolve_data(config: DataConfig) -> DataConfig:
    """The config with the revision that its content stands at: equal content, equal config.

    A Hub branch becomes its commit, a file the sha256 of its bytes; a revision that a file does
    not have is refused.
    """
    if config.source == BUILTIN:
        return config
    file = _local_file(config.source)
    if file is None:
        revision = _hub_commit(config.source, config.revision or "main")
    else:
        with file.open("rb") as content:
            revision = hashlib.file_digest(content, "sha256").hexdigest()
        if config.revision not in (None, revision):
            raise ConfigError(
                "data.revision", config.revision,
                f"{file.name} now has sha256 {revision}; restore the file, or clear the revision",
            )  # fmt: skip
    return config.model_copy(update={"revision": revision})


def load_examples(config: DataConfig) -> LoadedData:
    """Training rows, held-out rows and probe rows of a source.

    `counts` says what was left out: records whose two transcripts share no prompt, held-out rows
    whose prompt or answer also stands in training rows; and how many answers are empty.

    **Raises:** `ConfigError` for an unknown file, a broken line, a missing column, doubled ids, or
    too few rows.
    """
    if config.source == BUILTIN:
        world = build_world(config.world)
        return LoadedData(world.pairs, world.heldout, world.probes, {}, world)
    records = _first(_records(config), config.rows)
    origin = Path(config.source).name
    if config.format == "hh":
        read: list[Example | None] = list(readers.transcripts(records, origin))
    else:
        read = list(readers.pairs(records, origin))
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
        raise ConfigError("data.source", config.source, "holds no rows; give a file with rows")
    name, count = Counter(one.id for one in examples).most_common(1)[0]
    if count > 1:
        raise ConfigError(
            "data.source", config.source, f"{count} rows have id {name!r}; ids must be unique"
        )


def _records(config: DataConfig) -> Iterator[dict[str, Any]]:
    file = _local_file(config.source)
    if file is not None:
        return readers.read_records(file)
    from datasets import load_dataset

    table = load_dataset(
        config.source,
        data_dir=config.hub_folder,
        split=config.hub_split,
        revision=_hub_commit(config.source, config.revision or "main"),
    )
    return (dict(record) for record in table)


def _first(records: Iterator[dict[str, Any]], count: int | None) -> list[dict[str, Any]]:
    return list(islice(records, count))


def _local_file(source: str) -> Path | None:
    """The file that a source names; None where it reads as a Hub name (`owner/name`)."""
    file = Path(source).expanduser()
    if file.is_file():
        return file
    if file.is_dir():
        raise ConfigError("data.source", source, "is a folder; name the .jsonl file in it")
    if source.startswith((".", "/", "~")) or ".jsonl" in file.name or source.count("/") != 1:
        raise ConfigError(
            "data.source", source, "no such file; give `builtin`, a file, or a Hub name owner/name"
        )
    return None


def _hub_commit(name: str, revision: str) -> str:
    if len(revision) == 40 and all(letter in "0123456789abcdef" for letter in revision):
        return revision
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        commit = HfApi().dataset_info(name, revision=revision).sha
    except (HfHubHTTPError, OSError) as error:
        raise ConfigError(
            "data.source", f"{name}@{revision}",
            f"the Hub did not resolve it ({type(error).__name__}); give a local file, or a commit "
            "as data.revision",
        ) from error  # fmt: skip
    if commit is None:
        raise ConfigError("data.source", f"{name}@{revision}", "the Hub named no commit; give one")
    return commit
