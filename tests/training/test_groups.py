"""Training on sampled groups: what is logged, resume states, and its stages up to forces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dynolab.data.encode import Encoded
from dynolab.data.rows import PromptRow, read_rows
from dynolab.data.sources.load import DataConfig
from dynolab.errors import ConfigError
from dynolab.functions import ALLOWED
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.objectives import GRPOConfig
from dynolab.rollouts.generator import Sampled
from dynolab.training.config import GroupTrainConfig
from dynolab.training.rollout import Answers, Scorer, make_groups
from tasks.data import PROMPTS
from tasks.forces import FORCES, ForcesConfig
from tasks.runtime.work import StageResult
from tasks.training import GROUP
from tests.flows.analysed import PLAIN, WORLD, Analysed
from tests.training.small import (
    apart,
    group_settings,
    make_policy,
    make_tokenizer,
    metrics,
    run_small,
    state,
)


def test_groups_of_equal_rewards_are_left_out_and_counted(inputs: Path, tmp_path: Path) -> None:
    equal = {
        "rewards": [{"name": "tests.training.rewards.same_for_most"}],
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "batch_size": 8,
        "steps": 3,
        "updates_per_rollout": 1,
        "record_steps": [0, 1, 2],
    }
    together = run_small(inputs, tmp_path, group_settings(micro_batch_size=8, **equal))
    logged = metrics(together)
    kept = [8 - values["train/groups_equal"] for values in logged]
    assert 1 <= sum(kept) <= 2 and 0 in kept
    for number, (count, values) in enumerate(zip(kept, logged, strict=True)):
        record = together.output / "forces" / f"step-{number:08d}" / "batch.jsonl"
        assert record.exists() == ("train/loss" in values) == (count > 0)
        if count:
            assert len(record.read_text().splitlines()) == count


def test_what_is_logged_of_rollouts_and_pushes(inputs: Path, tmp_path: Path) -> None:
    first, second, third, *_ = metrics(run_small(inputs, tmp_path, group_settings()))
    names = {
        f"rollout/{name}"
        for name in ("reward", "pass_at_1", "solved", "length", "finished", "entropy")
    }
    assert names <= first.keys() & third.keys() and not names & second.keys()
    assert first["rollout/reward"] == pytest.approx(first["rollout/pass_at_1"])
    assert first["rollout/solved"] > first["rollout/pass_at_1"]
    assert "rollout/pass_at_4" not in first  # of four samples alone it would be 0 or 1
    assert first["train/kl"] < 1e-6 < second["train/kl"]
    assert first["train/ratio"] == pytest.approx(1.0, abs=1e-5)
    assert first["train/clip_fraction"] == 0.0
    levels = [first[f"train/dynamic_learning_rate/q{q}"] for q in ("05", "25", "50", "75", "95")]
    assert levels == sorted(levels) and levels[0] < 0 < levels[-1]


def test_pairs_log_how_hard_each_response_is_pushed(inputs: Path, tmp_path: Path) -> None:
    config = group_settings(objective={"name": "dpo", "beta": 0.1})
    first, *_, last = metrics(run_small(inputs, tmp_path, config))
    # β(1 − σ(0)) before the first step.
    assert first["train/dynamic_learning_rate/q50"] == pytest.approx(0.05)
    assert last["train/dynamic_learning_rate/q05"] < last["train/dynamic_learning_rate/q95"]


def test_the_reward_grows(inputs: Path, tmp_path: Path) -> None:
    config = group_settings(
        steps=30,
        updates_per_rollout=1,
        batch_size=8,
        completions=8,
        checkpoint_every=0,
        optimizer={"name": "adamw", "learning_rate": 5e-3},
    )
    rewards = [values["rollout/reward"] for values in metrics(run_small(inputs, tmp_path, config))]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2


def test_a_state_serves_a_longer_training(inputs: Path, tmp_path: Path) -> None:
    short = run_small(inputs, tmp_path / "short", group_settings(steps=4))
    config = group_settings(steps=6, probe_every=2)
    longer = run_small(inputs, tmp_path / "longer", config, state(short, 3))
    whole = run_small(inputs, tmp_path / "whole", group_settings(steps=6))
    assert apart(longer, whole) == 0.0


@pytest.mark.parametrize("kl_in_reward", [0.0, 0.3])
def test_long_and_drifting_answers_lose_reward_before_they_are_compared(
    kl_in_reward: float,
) -> None:
    policies = [ResponseLogits(make_policy(make_tokenizer(), seed)) for seed in (0, 1)]
    scorer = Scorer(policies[0], policies[1], pad_id=0, batch=4)
    lengths, rewards = (2, 4, 5, 6), (1.0, 1.0, 0.0, 1.0)
    sampled = tuple(
        Sampled(Encoded((3, 4, *range(5, 5 + length)), 2), "", True, (-1.0,) * length)
        for length in lengths
    )
    config = GRPOConfig(
        overlong_buffer=4, max_tokens=6, scale_by_std=False, kl_in_reward=kl_in_reward
    )
    answers = [Answers("q", sampled, rewards)]
    (group,) = make_groups(answers, scorer, config, temperature=1.0, right_from=1.0, seed=0)
    # Eq. 13 of DAPO: nothing up to 2 tokens, 1 at 6.
    shaped = torch.tensor([1.0, 0.5, -0.75, 0.0], dtype=torch.float64)
    drift = [float((one.old - one.reference).sum()) for one in group.completions]
    shaped -= kl_in_reward * torch.tensor(drift)
    found = [float(one.advantage[0]) for one in group.completions]
    assert found == pytest.approx((shaped - shaped.mean()).tolist(), rel=1e-5)
    assert all(abs(one) > 0.01 for one in drift)


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
def prompts(analysed: Analysed) -> StageResult:
    return analysed.run(PROMPTS, DataConfig(world=WORLD))


def test_prompts_are_the_data_s_own_with_answers_that_check(
    analysed: Analysed, prompts: StageResult
) -> None:
    rows = list(read_rows(analysed.folder(prompts) / "train.jsonl", PromptRow))
    data = [json.loads(line) for line in (analysed.folder(analysed.data) / "train.jsonl").open()]
    assert [(row.id, row.prompt) for row in rows] == [(pair["id"], pair["prompt"]) for pair in data]
    assert all(row.answer in pair["chosen"].split() for row, pair in zip(rows, data, strict=True))


def test_a_training_on_groups_is_a_stage_like_the_others(
    analysed: Analysed, prompts: StageResult
) -> None:
    config = GroupTrainConfig.model_validate(
        SMALL | {"rewards": [{"name": "tests.training.rewards.words_of_four"}]}
    )
    inputs = {"prompts": prompts, "data": analysed.data, "model": analysed.base}
    made = analysed.run(GROUP, config, **inputs)
    assert made.metrics["data/rows_kept"] == 12
    folder = analysed.folder(made)
    assert (folder / "model" / "model.safetensors").exists()
    assert (folder / "probes.jsonl").exists()
    forces = analysed.run(FORCES, ForcesConfig(pairs=2), data=analysed.data, trained=made)
    assert forces.metrics["largest_replay_error"] < 1e-3
    assert analysed.run(GROUP, config, **inputs).cached


def test_a_reward_that_may_not_be_named_is_refused_before_any_rank(
    analysed: Analysed, prompts: StageResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALLOWED, raising=False)
    config = GroupTrainConfig.model_validate(SMALL | {"rewards": [{"name": "os.system"}]})
    with pytest.raises(ConfigError, match=ALLOWED):
        analysed.run(GROUP, config, prompts=prompts, data=analysed.data, model=analysed.base)


def test_the_default_is_the_built_in_world_s_question(
    analysed: Analysed, prompts: StageResult
) -> None:
    config = GroupTrainConfig.model_validate(SMALL | {"steps": 1, "record_steps": ()})
    made = analysed.run(GROUP, config, prompts=prompts, data=analysed.data, model=analysed.base)
    lines = [json.loads(line) for line in (analysed.folder(made) / "metrics.jsonl").open()]
    assert any("rollout/pass_at_1" in line["metrics"] for line in lines)
