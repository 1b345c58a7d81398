"""Files of rows, and data settings that name them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from dynolab.data.sources.config import DataConfig


def write(folder: Path, rows: list[dict[str, Any]], kind: str = "jsonl") -> str:
    """The path of a file `rows.KIND` with these rows."""
    file = folder / f"rows.{kind}"
    if kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=2)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def file_config(path: str, **options: Any) -> DataConfig:
    """Of a file; without options no row is held out and none probed."""
    settings = {"heldout_rows": 0, "probe_pairs": 0, **options}
    return DataConfig(source="file", path=path, **settings)


def turn(role: str, content: str) -> dict[str, str]:
    """A message of a conversation."""
    return {"role": role, "content": content}
