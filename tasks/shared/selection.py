"""Selects the answers that a force analysis observes, and the pairs that update.

`pair_ids` selects training pairs by id; if empty, the first ones are used.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from pathlib import Path

from pydantic import Field

from dynolab.data.encode import Encoded, Encoder
from dynolab.data.rows import Example, ProbeRow, Split, first_pairs, read_rows
from dynolab.errors import ConfigError
from dynolab.grouping import grouped
from dynolab.objectives.registry import RowObjectiveConfig
from dynolab.probes.paths import complete_pairs
from dynolab.results.study import ProbeScore
from dynolab.training.examples import check_rows
from tasks.runtime.work import StageConfig

NAMED = 3
"""Watched pairs that a message names."""


class SelectionConfig(StageConfig):
    """How many of the data's answers and pairs are used, from the first; none are drawn."""

    observed_pairs: int = Field(
        4, ge=1, description="Pairs of each split whose answers are observed, from the first."
    )
    kinds: tuple[str, ...] = Field(
        ("chosen", "rejected"), min_length=1, description="Kinds of answers that are observed."
    )
    updating_pairs: int = Field(
        8, ge=1, description="Training pairs that update, from the first, as one step's batch."
    )


def observed_answers(
    data: Path, config: SelectionConfig, encoder: Encoder, pair_ids: Collection[str] = ()
) -> list[tuple[ProbeRow, Encoded]]:
    """The observed answers of a data stage's result, encoded; leaves out those that are too long.

    **Raises** `ConfigError` as `observed_rows` does, and if no answer is left.
    """
    encoded = [(row, encoder.probe(row)) for row in observed_rows(data, config, pair_ids)]
    fitting = [(row, sequence) for row, sequence in encoded if sequence is not None]
    if not fitting:
        raise ConfigError(
            "observed_pairs",
            config.observed_pairs,
            "every observed answer is longer than the model's context; observe more pairs",
        )
    return fitting


def observed_rows(
    data: Path, config: SelectionConfig, pair_ids: Collection[str] = ()
) -> list[ProbeRow]:
    """The answers to observe: of those pairs that are watched; some may update only.

    **Raises** `ConfigError` for a kind that the data do not have, and if no pair is watched.
    """
    rows = list(read_rows(data / "probes.jsonl", ProbeRow))
    kinds = list(dict.fromkeys(row.kind for row in rows))
    for kind in config.kinds:
        if kind not in kinds:
            content = f"has {', '.join(kinds)}" if kinds else "is empty; raise data.probe_pairs"
            raise ConfigError("kinds", kind, f"the data's probe set {content}")
    rows = [row for row in rows if row.kind in config.kinds]
    if pair_ids:
        trained = [row for row in rows if row.split == "train"]
        rows = [row for row in trained if row.pair_id in pair_ids]
        if not rows:
            watched = dict.fromkeys(row.pair_id for row in trained)
            raise ConfigError(
                "pair_ids",
                ", ".join(pair_ids),
                "none of them is watched; name one that is, such as "
                f"{', '.join(islice(watched, NAMED)) or 'none: raise data.probe_pairs'}",
            )
        return rows
    return first_pairs(rows, config.observed_pairs)


def updating_rows(
    data: Path,
    config: SelectionConfig,
    objective: RowObjectiveConfig | None = None,
    pair_ids: Collection[str] = (),
) -> list[Example]:
    """The pairs that update.

    **Raises** `ConfigError` for pairs that lack a side that the objective reads, and for ids that
    the data do not have.
    """

    all_rows = read_rows(data / "train.jsonl", Example)
    if pair_ids:
        rows = [row for row in all_rows if row.id in pair_ids]
        train_ids = {row.id for row in rows}
        for name in pair_ids:
            if name not in train_ids:
                raise ConfigError("pair_ids", name, "is not the id of a training pair")
    else:
        rows = list(islice(all_rows, config.updating_pairs))
    if objective is not None:
        check_rows(rows, objective)
    return rows


def moved_most(trained: Path, split: Split, count: int, *, up: bool = False) -> list[str]:
    """Pairs of a split whose chosen answers fell most from first to last probe; rose, with `up`.

    Pairs that trainings leave out, because an answer exceeds the context, are not among them. Empty
    for a training that watched none.

    **Arguments:** `trained`: the folder of a training's result.
    """

    file = trained / "probes.jsonl"
    if not count or not file.exists():
        return []
    scores = grouped(
        (score.pair_id, score)
        for score in complete_pairs(list(read_rows(file, ProbeScore)))
        if score.split == split and score.kind == "chosen"
    )
    change = {pair: path[-1].logp - path[0].logp for pair, path in scores.items()}
    return sorted(change, key=change.__getitem__, reverse=up)[:count]
