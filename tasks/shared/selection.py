"""Which answers a force analysis observes, and which pairs update: the data's first, or named.

`pair_ids` are training pairs that are taken in place of the first ones; empty: those.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from pathlib import Path

from pydantic import Field

from dynolab.data.encode import Encoded, Encoder
from dynolab.data.rows import Example, ProbeRow, read_rows
from dynolab.errors import ConfigError
from dynolab.objectives.registry import RowObjectiveConfig
from tasks.runtime.work import StageConfig
from tasks.step_forces import first_pairs


class SelectionConfig(StageConfig):
    """How many of the data's answers and pairs; no draw decides which."""

    observed_pairs: int = Field(
        4, ge=1, description="Pairs of each split whose answers are observed: the first ones."
    )
    kinds: tuple[str, ...] = Field(
        ("chosen", "rejected"), min_length=1, description="Kinds of answers that are observed."
    )
    updating_pairs: int = Field(
        8, ge=1, description="Training pairs that update: the first ones, as one step's batch."
    )


def observed_answers(
    data: Path, config: SelectionConfig, encoder: Encoder, pair_ids: Collection[str] = ()
) -> list[tuple[ProbeRow, Encoded]]:
    """The observed answers of a data stage's result, encoded; those too long are left out.

    **Raises** `ConfigError` as `observed_rows` does, and where no answer is left.
    """
    rows = observed_rows(data, config, pair_ids)
    encoded = [(row, encoder.response(row.pair_id, row.prompt, row.response)) for row in rows]
    kept = [(row, sequence) for row, sequence in encoded if sequence is not None]
    if not kept:
        raise ConfigError(
            "observed_pairs",
            config.observed_pairs,
            "every observed answer is longer than the model's context; observe more pairs",
        )
    return kept


def observed_rows(
    data: Path, config: SelectionConfig, pair_ids: Collection[str] = ()
) -> list[ProbeRow]:
    """The answers to observe; **Raises** `ConfigError` for a kind or pair that the data lack."""
    rows = list(read_rows(data / "probes.jsonl", ProbeRow))
    known = list(dict.fromkeys(row.kind for row in rows))
    for kind in config.kinds:
        if kind not in known:
            there = f"has {', '.join(known)}" if known else "has none; raise data.probe_pairs"
            raise ConfigError("kinds", kind, f"the data's probe set {there}")
    rows = [row for row in rows if row.kind in config.kinds]
    if pair_ids:
        rows = [row for row in rows if row.split == "train" and row.pair_id in pair_ids]
        _check_known(pair_ids, {row.pair_id for row in rows}, "watched training pair")
        return rows
    return first_pairs(rows, config.observed_pairs)


def updating_rows(
    data: Path,
    config: SelectionConfig,
    objective: RowObjectiveConfig | None = None,
    pair_ids: Collection[str] = (),
) -> list[Example]:
    """The pairs that update.

    **Raises** `ConfigError` for ones without what the objective reads, and ones that are not there.
    """
    from dynolab.training.examples import check_rows

    every = read_rows(data / "train.jsonl", Example)
    if pair_ids:
        rows = [row for row in every if row.id in pair_ids]
        _check_known(pair_ids, {row.id for row in rows}, "training pair")
    else:
        rows = list(islice(every, config.updating_pairs))
    if objective is not None:
        check_rows(rows, objective)
    return rows


def _check_known(wanted: Collection[str], known: Collection[str], what: str) -> None:
    for name in wanted:
        if name not in known:
            raise ConfigError(
                "pair_ids",
                name,
                f"is no {what} of these data; take an id from its probes.jsonl, split train",
            )
