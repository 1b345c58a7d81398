"""Resume states of an engine and a source that keep one file each."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from dynolab.training.job import TrainJob
from dynolab.training.resume import load_state, save_state
from tests.training.small import state


class Part:
    """Stands for an engine and for a source: keeps one file, and notes what it is asked."""

    def __init__(self) -> None:
        self.loaded: list[tuple[Any, ...]] = []

    def save(self, *given: Any) -> None:
        folder: Path = given[-1]
        folder.mkdir(parents=True)
        (folder / "part").write_text(json.dumps(given[:-1]))

    def load(self, *given: Any) -> None:
        self.loaded.append((*given[:-1], (given[-1] / "part").read_text(), given[-1].name))


def save(job: TrainJob) -> Path:
    """Saves the state after three steps; returns its folder."""
    save_state(Part(), Part(), 3, job)
    return state(job, 3)


def load(folder: Path, job: TrainJob) -> tuple[int, list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Loads a state; returns its steps, and what the engine and the source have loaded."""
    engine, source = Part(), Part()
    return load_state(engine, source, folder, job).step, engine.loaded, source.loaded


LOADED = (3, [("[]", "engine")], [(3, "[3]", "source")])
"""What `load` returns of a state that `save` has saved."""


def change_facts(folder: Path, **changes: Any) -> None:
    path = folder / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def files(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def warning(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    return record.getMessage()
