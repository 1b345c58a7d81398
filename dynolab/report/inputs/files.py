"""Data that all pages share: rows of a stage's files, and facts about the stages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dynolab.data.rows import Row, read_rows

AnyRow = TypeVar("AnyRow", bound=Row)


class StageFacts(Row):
    """One line of the stage table."""

    stage: str
    key: str
    seconds: float | None = None
    mlflow_run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class PageInputs:
    """What every page shows about its run: the name, the settings as text, and the stages."""

    name: str
    settings: str = ""
    stages: tuple[StageFacts, ...] = ()


def records(folder: Path, file: str) -> list[dict[str, Any]]:
    """The rows of a stage's file as mappings; empty without the file."""
    path = folder / file
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


def rows(
    folder: Path | None, file: str, kind: type[AnyRow], *, optional: bool = False
) -> tuple[AnyRow, ...]:
    """The rows of a stage's file; empty without a folder or, if `optional`, without the file.

    Raises ConfigError for a file with other rows.
    """
    if folder is None or (optional and not (folder / file).exists()):
        return ()
    return tuple(read_rows(folder / file, kind))
