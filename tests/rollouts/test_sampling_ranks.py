"""Ranks draw what one process draws, from weights that are sharded too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tasks.runtime.launch.launcher import launch_ranks
from tests.rollouts.sampling_ranks import SAMPLES, STEPS, sampled_run
from tests.training.small import make_files

pytestmark = pytest.mark.ranks
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sampling")
    make_files(folder)
    job = folder / "job.json"
    job.write_text(json.dumps({"inputs": str(folder)}))
    launch_ranks(
        "tests.rollouts.sampling_ranks",
        job,
        ranks=2,
        logs=folder / "logs",
        environment={"PYTHONPATH": str(ROOT)},
        while_running=lambda: None,
    )
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict:
    return sampled_run(folder, "plain", 1, 2)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_two_ranks_draw_what_one_process_draws(folder: Path, alone: dict, stage: int) -> None:
    drawn = json.loads((folder / f"zero{stage}.json").read_text())["drawn"]
    assert len(drawn) == STEPS and all(len(group) == SAMPLES for group in drawn[0])
    assert drawn == alone["drawn"]
    assert drawn[0] != drawn[1]


def test_sampling_changes_nothing_in_training(folder: Path) -> None:
    one, other = (
        json.loads((folder / f"{name}.json").read_text())["weights"]
        for name in ("zero3", "undisturbed")
    )
    for name, weights in one.items():
        assert torch.equal(torch.tensor(weights), torch.tensor(other[name]))
