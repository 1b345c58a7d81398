"""Functions of a user's modules: their code is a part of the settings that name them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dynolab.errors import ConfigError
from dynolab.objectives import CustomConfig, DPOConfig, build_objective
from dynolab.rollouts.rewards import RewardConfig, Rewards
from dynolab.training.config import TrainConfig
from tasks.runtime.keys import canonical
from tasks.runtime.stage import Stage, changed_sources, plan_key, run_stage
from tasks.runtime.work import Work
from tests.runtime.doubles import memory_platform
from tests.user_functions import (
    FILES,
    MODULE,
    PACKAGE,
    forget,
    importable,
    own_code_changes_noticed,
    training,
)

LOSS = f"{MODULE}.loss"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with importable(tmp_path):
        yield tmp_path


def test_every_change_of_the_code_is_another_key(tmp_path: Path) -> None:
    assert own_code_changes_noticed(tmp_path) == 1.0


def test_the_settings_name_the_files_that_are_imported(folder: Path) -> None:
    deep = [f"{PACKAGE}/{name}.py" for name in ("__init__", "deep", "shift")]
    files = ["helpers_of_a_user.py", f"{MODULE}.py", *deep]
    assert list(training().objective.source_sha256 or ()) == files
    assert "source_sha256" not in canonical(TrainConfig(objective=DPOConfig()))["objective"]
    assert "source_sha256" not in RewardConfig(name="exact").model_dump()


def test_what_changed_is_said_until_it_is_computed(folder: Path) -> None:
    def body(work: Work[TrainConfig]) -> dict[str, float]:
        if work.config.seed:
            work.commit_resume(1, work.logs)
            raise KeyboardInterrupt
        return {}

    stage, platform = Stage("train", 1, body), memory_platform(folder / "home")

    def changed(config: TrainConfig) -> list[str]:
        return changed_sources(stage, config, {}, platform)

    before = training()
    broken = before.model_copy(update={"seed": 1})
    assert changed(before) == [], "nothing ran before"
    run_stage(stage, before, {}, platform)
    with pytest.raises(KeyboardInterrupt):
        run_stage(stage, broken, {}, platform)
    (folder / "helpers_of_a_user.py").write_text("SIGN = -1\n")
    forget()
    after = training()
    assert plan_key(stage, after, {}) != plan_key(stage, before, {})
    assert changed(after) == ["helpers_of_a_user.py"]
    assert changed(after.model_copy(update={"seed": 1})) == ["helpers_of_a_user.py"]
    assert changed(after.model_copy(update={"seed": 2})) == [], "it never ran with this seed"
    assert changed(TrainConfig()) == []


def test_settings_of_other_code_do_not_run_this_one(folder: Path) -> None:
    """A rank, a replay or a pinned study file never computes with a file that has changed."""
    reward = RewardConfig(name=f"{MODULE}.reward")
    before = training().model_dump_json()
    (folder / f"{MODULE}.py").write_text(FILES[f"{MODULE}.py"] + "\n")
    build_objective(TrainConfig.model_validate_json(before).objective)  # still the loaded code
    forget()
    objective = TrainConfig.model_validate_json(before).objective
    with pytest.raises(ConfigError, match=rf"objective.loss = '{LOSS}': {MODULE}\.py changed"):
        build_objective(objective)
    with pytest.raises(ConfigError, match=rf"reward = '{reward.name}': {MODULE}\.py changed"):
        Rewards([reward])


def test_a_loss_is_tried_with_gradients_where_they_are_off(folder: Path) -> None:
    with torch.no_grad():
        assert build_objective(CustomConfig(loss=LOSS)).needs_reference


BROKEN = {
    "def loss(:\n": r"cannot be imported \(SyntaxError: .*line 1\)",
    "1 / 0\n": r"cannot be imported \(ZeroDivisionError: division by zero, .*\.py line 1\)",
    "import sys\nsys.exit()\n": r"cannot be imported \(SystemExit, .*\.py line 2\)",
    "def loss(a, b):\n    raise KeyError(b)\n": r"fails \(KeyError: .*\.py line 2\)",
    "def loss(a, b):\n    raise SystemExit\n": r"fails \(SystemExit, .*\.py line 2\)",
    "def loss(a):\n    return a\n": r"fails \(TypeError: loss\(\) takes 1 positional",
    "class loss:\n    pass\n": "has no function 'loss'",
}


@pytest.mark.parametrize("code", BROKEN)
def test_code_that_fails_is_refused_with_its_line(code: str, folder: Path) -> None:
    (folder / f"{MODULE}.py").write_text(code)
    with pytest.raises(ConfigError, match=BROKEN[code]):
        build_objective(CustomConfig(loss=LOSS))
