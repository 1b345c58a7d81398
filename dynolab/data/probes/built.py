"""Reads a probe set that was built before, and checks it against the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynolab.data.rows import Example, ProbeRow, Split, read_rows
from dynolab.errors import ConfigError


def read_built_probes(
    file: Path, train: Sequence[Example], heldout: Sequence[Example]
) -> list[ProbeRow]:
    """Reads the `probes.jsonl` of a run of the flow `probes`.

    **Raises:** `ConfigError` for an invalid line, an empty file, and a row whose pair is not in its
    split of these data: the row would count for the wrong split.
    """
    parts: dict[Split, dict[str, Example]] = {
        "train": {example.id: example for example in train},
        "heldout": {example.id: example for example in heldout},
    }
    rows = list(read_rows(file, ProbeRow))
    if not rows:
        raise ConfigError("data.probes", file.name, "has no rows; build the probe set first")
    for row in rows:
        pair = parts[row.split].get(row.pair_id)
        if pair is None or pair.prompt != row.prompt:
            raise ConfigError(
                "data.probes",
                f"{file.name}, {row.kind} of pair {row.pair_id}",
                f"these data have no such pair among their {row.split} rows; build the probe set "
                "with the same data settings and seed",
            )
    return rows
