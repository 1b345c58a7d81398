"""A pytest plugin for mutation runs: the cheapest tests first, and of them a minute's worth.

A mutant that these do not notice counts as a survivor, whatever slower tests would say.
"""

from __future__ import annotations

import json
from bisect import bisect
from itertools import accumulate
from pathlib import Path

import pytest

SECONDS = 60.0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts and cuts by the seconds that mutmut measured without a mutant."""
    stats = Path("mutmut-stats.json")
    if not stats.exists():
        return
    seconds = json.loads(stats.read_text())["duration_by_test"]
    items.sort(key=lambda item: seconds.get(item.nodeid, 0.0))
    costs = accumulate(seconds.get(item.nodeid, 0.0) for item in items)
    kept = max(1, bisect(list(costs), SECONDS))
    config.hook.pytest_deselected(items=items[kept:])
    del items[kept:]
