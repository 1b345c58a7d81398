"""The library on a pretended GPU: no path mixes devices, and a training seldom waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from typing import Any

import pytest

pytestmark = pytest.mark.services

Walked = dict[str, dict[str, dict[str, Any]]]


def walked() -> Walked:
    """What was counted on all paths, by group and path.

    In a process of its own: torch's pretended backend would change what other tests see.
    """
    # transformers loads weights in threads of its own, which the pretended GPU does not see.
    offline = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DEACTIVATE_ASYNC_LOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.paths"],
        env=os.environ | offline,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    noted: Walked = defaultdict(dict)
    for text in done.stdout.splitlines():
        if text.startswith('{"group"'):
            line = json.loads(text)
            noted[line.pop("group")][line.pop("path")] = line
    return noted


walks = pytest.fixture(scope="module")(walked)


@pytest.mark.parametrize("group", ["training", "forces", "sampling"])
def test_no_path_mixes_devices(walks: Walked, group: str) -> None:
    paths = walks[group]
    assert paths
    assert {name: path["error"] for name, path in paths.items() if path["error"]} == {}
    assert {name: path["mixed"] for name, path in paths.items() if path["mixed"]} == {}
    assert all(sum(path["operations"].values()) > 500 for path in paths.values())
    if group == "training":  # what is resumed or replayed must give the same bits
        assert {name: path["unordered"] for name, path in paths.items() if path["unordered"]} == {}


def test_the_host_hardly_waits_in_a_micro_batch(walks: Walked) -> None:
    paths = walks["micro_batch"]
    assert {name: path["error"] for name, path in paths.items() if path["error"]} == {}
    for name, path in paths.items():
        assert path["figures"]["waits"] <= 4, name
        assert path["figures"]["copies"] <= 1, name


def test_planted_mistakes_are_named_with_their_line(walks: Walked) -> None:
    paths = walks["planted"]
    (what,) = paths.pop("host tensor in a loss")["mixed"]
    assert what.startswith("add of GPU tensors with host tensors [(2,)] at tests/gpu/paths.py")
    assert all(path["error"] is None for path in paths.values())
    kinds = ("mixed", "waits", "copies", "unordered")
    noted = {name: {kind for kind in kinds if path[kind]} for name, path in paths.items()}
    assert noted == {
        "host values, GPU indices": {"mixed"},
        "GPU values, host indices": {"waits", "copies"},
        "a host scalar": set(),
        "joined with a host tensor": {"mixed"},
        "read": {"waits"},
        "mask": {"waits"},
        "copied from pageable memory": {"waits", "copies"},
        "copied from pinned memory": set(),
        "copied to the host": {"waits", "copies"},
        "added in any order": {"unordered"},
        "integers added": set(),
    }
