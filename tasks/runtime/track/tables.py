"""Logs tables to MLflow, whose run page shows them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from tasks.runtime.track.runs import RunTracker

FOLDER = "tables"


def log_tables(
    tracker: RunTracker,
    tables: Mapping[str, Iterable[BaseModel | Mapping[str, Any]]],
    scratch: Path,
) -> None:
    """Upload rows as `tables/<name>.json`, in the format of `mlflow.load_table`."""
    for name, rows in tables.items():
        dumped = [
            row.model_dump(mode="json") if isinstance(row, BaseModel) else row for row in rows
        ]
        columns = list(dumped[0]) if dumped else []
        content = {"columns": columns, "data": [list(row.values()) for row in dumped]}
        file = scratch / f"{name}.json"
        file.write_text(json.dumps(content), encoding="utf-8")
        tracker.log_artifact(file, FOLDER)
    listed = [{"path": f"{FOLDER}/{name}.json", "type": "table"} for name in tables]
    tracker.set_tags({"mlflow.loggedArtifacts": json.dumps(listed)})
