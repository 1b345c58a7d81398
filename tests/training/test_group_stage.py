"""The stages of training on sampled groups, from the built-in world to measured forces."""

from __future__ import annotations

from typing import Any

import pytest

from dynolab.data.rows import Example, PromptRow, read_rows
from dynolab.data.sources.load import DataConfig
from dynolab.errors import ConfigError
from dynolab.functions import ALLOWED
from dynolab.results.study import MetricsLine
from dynolab.training.config import GroupTrainConfig
from tasks.data import PROMPTS
from tasks.forces import FORCES, ForcesConfig
from tasks.runtime.work import StageResult
from tasks.training import GROUP
from tests.flows.analysed import PLAIN, WORLD, Analysed

SMALL: dict[str, Any] = {
    "engine": PLAIN,
    "steps": 2,
    "batch_size": 4,
    "completions": 4,
    "max_new_tokens": 6,
    "probe_every": 2,
    "record_steps": (0,),
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Analysed:
    return Analysed(tmp_path_factory.mktemp("groups") / "home")


@pytest.fixture(scope="module")
def prompts(lab: Analysed) -> StageResult:
    return lab.run(PROMPTS, DataConfig(world=WORLD))


def test_prompts_are_the_data_s_own_with_answers_that_check(
    lab: Analysed, prompts: StageResult
) -> None:
    rows = list(read_rows(lab.folder(prompts) / "train.jsonl", PromptRow))
    data = list(read_rows(lab.folder(lab.data) / "train.jsonl", Example))
    assert [(row.id, row.prompt) for row in rows] == [(pair.id, pair.prompt) for pair in data]
    assert all(row.answer in pair.chosen.split() for row, pair in zip(rows, data, strict=True))


def test_a_training_on_groups_is_a_stage_like_the_others(
    lab: Analysed, prompts: StageResult
) -> None:
    config = GroupTrainConfig.model_validate(
        SMALL | {"rewards": [{"name": "tests.training.rewards.words_of_four"}]}
    )
    inputs = {"prompts": prompts, "data": lab.data, "model": lab.base}
    made = lab.run(GROUP, config, **inputs)
    assert made.metrics["data/rows_kept"] == 12
    folder = lab.folder(made)
    assert (folder / "model" / "model.safetensors").exists()
    assert (folder / "probes.jsonl").exists()
    forces = lab.run(FORCES, ForcesConfig(pairs=2), data=lab.data, trained=made)
    assert forces.metrics["largest_replay_error"] < 1e-3
    assert lab.run(GROUP, config, **inputs).cached


def test_a_reward_that_may_not_be_named_is_refused_before_any_rank(
    lab: Analysed, prompts: StageResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALLOWED, raising=False)
    config = GroupTrainConfig.model_validate(SMALL | {"rewards": [{"name": "os.system"}]})
    with pytest.raises(ConfigError, match=ALLOWED):
        lab.run(GROUP, config, prompts=prompts, data=lab.data, model=lab.base)


def test_the_default_is_the_built_in_world_s_question(lab: Analysed, prompts: StageResult) -> None:
    config = GroupTrainConfig.model_validate(SMALL | {"steps": 1, "record_steps": ()})
    made = lab.run(GROUP, config, prompts=prompts, data=lab.data, model=lab.base)
    assert any(
        "rollout/pass_at_1" in line.metrics
        for line in read_rows(lab.folder(made) / "metrics.jsonl", MetricsLine)
    )
