"""A pytest plugin for mutation runs: the cheapest tests first, so that a mutant dies soon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts tests by the seconds that mutmut measured without a mutant."""
    stats = Path("mutmut-stats.json")
    if stats.exists():
        seconds = json.loads(stats.read_text())["duration_by_test"]
        items.sort(key=lambda item: seconds.get(item.nodeid, 0.0))
