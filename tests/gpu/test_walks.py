"""The library on a pretended GPU: no path mixes devices, and a training seldom waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.compiled_guard import compiled_guard, compiler
from tests.training.every_objective import ON_GROUPS, ON_ROWS

pytestmark = pytest.mark.services

PATHS = {
    "training": len(ON_ROWS) + len(ON_GROUPS),
    "sampling": 12,
    "trainers": 6,
    "forces": 31,
    "classifiers": 5,
    "stages": 1,
}
"""Number of paths by group."""

SOME = [
    f"train {name}"
    for name in (
        "sft",
        "dpo",
        "dpo designed by pair",
        "ipo designed by token",
        "simpo",
        "grpo",
        "grpo nthr",
        "simko",
        "online sppo",
    )
]
"""Trainings of the fast tier: one for each way in which a loss is put together."""


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if compiler() is None:
        pytest.skip("no C++ compiler for the guard of the pretended GPU")
    return compiled_guard(tmp_path_factory.mktemp("guard"))


ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    # transformers loads weights in threads of its own, which the pretended GPU does not see.
    "HF_DEACTIVATE_ASYNC_LOAD": "1",
}


Walked = dict[str, dict[str, dict[str, Any]]]


def walked(guard: Path, groups: dict[str, list[str]]) -> Walked:
    """What was noted on the named paths, or on all of a group, by group and path."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.walk", str(guard), json.dumps(groups)],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    noted: Walked = {group: {} for group in groups}
    for text in done.stdout.splitlines():
        if text.startswith('{"group"'):
            line = json.loads(text)
            noted[line.pop("group")][line.pop("path")] = line
    return noted


@pytest.fixture(scope="module")
def walks(guard: Path) -> Walked:
    """All paths of the fast tier, in one process, which imports torch and transformers once."""
    others: dict[str, list[str]] = {group: [] for group in PATHS if group != "training"}
    return walked(guard, {"micro_batch": [], "planted": [], "training": SOME, **others})


@pytest.mark.parametrize("group", PATHS)
def test_no_path_mixes_devices(walks: Walked, group: str) -> None:
    check(group, walks[group], len(SOME) if group == "training" else PATHS[group])


@pytest.mark.study
def test_no_training_mixes_devices(guard: Path) -> None:
    check("training", walked(guard, {"training": []})["training"], PATHS["training"])


def check(group: str, paths: dict[str, dict[str, Any]], count: int) -> None:
    assert len(paths) == count
    assert {name: path["error"] for name, path in paths.items() if path["error"]} == {}
    assert {name: path["mixed"] for name, path in paths.items() if path["mixed"]} == {}
    assert all(path["operations"] > 500 for path in paths.values())
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
    (what,) = paths["host tensor in a loss"]["mixed"]
    assert what.startswith("add of GPU tensors with host tensors [(2,)] at tests/gpu/paths_planted")
    assert all(path["error"] is None for path in paths.values())
    noted = {
        name: {kind for kind in ("mixed", "waits", "copies", "unordered") if path[kind]}
        for name, path in paths.items()
    }
    del noted["host tensor in a loss"]
    assert noted == {
        "host values, GPU indices": {"mixed"},
        "GPU values, host indices": {"waits", "copies"},
        "a host scalar": set(),
        "joined with a host tensor": {"mixed"},
        "read": {"waits"},
        "mask": {"waits"},
        "copied from pageable memory": {"waits", "copies"},
        "copied from pinned memory": set(),
        "a batch": set(),
        "copied to the host": {"waits", "copies"},
        "added in any order": {"unordered"},
        "numbers added in any order": set(),
    }
