"""A probe set that was built before, read for the rows that it was built from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynolab.data.rows import Example, ProbeRow, Split, read_rows
from dynolab.errors import ConfigError


def read_built_probes(
    file: Path, train: Sequence[Example], heldout: Sequence[Example]
) -> list[ProbeRow]:
    """The rows of a `probes.jsonl` of the flow `probes`.

    **Raises:** `ConfigError` for a broken line, an empty file, and rows of other pairs than these
    or of pairs that stand on the other side of the split: they would be read as what they are not.
    """
    parts: dict[Split, dict[str, Example]] = {
        "train": {example.id: example for example in train},
        "heldout": {example.id: example for example in heldout},
    }
    rows = list(read_rows(file, ProbeRow))
    if not rows:
        raise ConfigError("data.probes", file.name, "holds no rows; build the probe set first")
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
