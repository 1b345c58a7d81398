"""Training on sampled groups in one process: what is logged, refusals, resume states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dynolab.errors import ConfigError
from dynolab.rollouts.rewards import ALLOWED
from dynolab.training.loop import train
from models.language import load_language_model, load_tokenizer
from tests.training.small import (
    distance,
    group_settings,
    make_files,
    make_job,
    settings,
    trained_weights,
)

SGD = {"name": "sgd", "learning_rate": 0.1}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_files(folder)
    return folder


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "tests.training.rewards")


def run(
    inputs: Path, folder: Path, resume_from: Path | None = None, **changes: Any
) -> dict[str, torch.Tensor]:
    job = make_job(inputs, folder, group_settings(**changes), resume_from)
    train(job, load_language_model(job.model), load_tokenizer(job.model))
    return trained_weights(job)


def metrics(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "output" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["metrics"] for line in lines]


def test_groups_of_equal_rewards_are_left_out_and_counted(inputs: Path, tmp_path: Path) -> None:
    equal = {
        "rewards": [{"name": "tests.training.rewards.same_for_most"}],
        "optimizer": SGD,
        "batch_size": 8,
        "steps": 3,
        "updates_per_rollout": 1,
        "record_steps": [0, 1, 2],
    }
    runs = [run(inputs, tmp_path / str(n), micro_batch_size=n, **equal) for n in (1, 8)]
    assert distance(*runs) < 1e-6
    seen = metrics(tmp_path / "8")
    kept = [8 - one["train/groups_equal"] for one in seen]
    assert 1 <= sum(kept) <= 2 and 0 in kept
    for number, (count, values) in enumerate(zip(kept, seen, strict=True)):
        record = tmp_path / "8" / "output" / "forces" / f"step-{number:08d}" / "batch.jsonl"
        assert record.exists() == ("train/loss" in values) == (count > 0)
        if count:
            assert len(record.read_text().splitlines()) == count


def test_what_is_logged_of_rollouts_and_pushes(inputs: Path, tmp_path: Path) -> None:
    run(inputs, tmp_path)
    first, second, third, *_ = metrics(tmp_path)
    for name in ("reward", "pass_at_1", "solved", "length", "finished", "entropy"):
        assert f"rollout/{name}" in first and f"rollout/{name}" in third
        assert f"rollout/{name}" not in second
    assert first["rollout/reward"] == pytest.approx(first["rollout/pass_at_1"])
    assert first["rollout/solved"] > first["rollout/pass_at_1"]
    assert "rollout/pass_at_4" not in first  # of four samples alone it would be 0 or 1
    assert first["train/kl"] < 1e-6 < second["train/kl"]
    assert first["train/ratio"] == pytest.approx(1.0, abs=1e-5)
    assert first["train/clip_fraction"] == 0.0
    levels = [first[f"train/dynamic_learning_rate/q{q}"] for q in ("05", "25", "50", "75", "95")]
    assert levels == sorted(levels) and levels[0] < 0 < levels[-1]


def test_pairs_log_how_hard_each_response_is_pushed(inputs: Path, tmp_path: Path) -> None:
    run(inputs, tmp_path, objective={"name": "dpo", "beta": 0.1})
    first, *_, last = metrics(tmp_path)
    # β(1 − σ(0)) before the first step.
    assert first["train/dynamic_learning_rate/q50"] == pytest.approx(0.05)
    assert last["train/dynamic_learning_rate/q05"] < last["train/dynamic_learning_rate/q95"]


def test_the_reward_grows(inputs: Path, tmp_path: Path) -> None:
    run(
        inputs,
        tmp_path,
        steps=30,
        updates_per_rollout=1,
        batch_size=8,
        completions=8,
        checkpoint_every=0,
        optimizer={"name": "adamw", "learning_rate": 5e-3},
    )
    rewards = [metric["rollout/reward"] for metric in metrics(tmp_path)]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"completions": 1}, "completions"),
        ({"rewards": []}, "rewards"),
        ({"seed": -1}, "seed"),
        ({"objective": {"name": "grpo", "aggregation": "dr_grpo", "max_tokens": 7}}, "max_tokens"),
    ],
)
def test_settings_that_do_not_fit_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        group_settings(**changes)


def test_a_reward_that_fails_names_its_prompt(inputs: Path, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run(
            inputs,
            tmp_path,
            rewards=[{"name": "tests.training.rewards.fourth_fails"}],
            batch_size=24,
        )
    assert "r3" in "".join(caught.value.__notes__)


def test_states_of_another_training_are_refused(inputs: Path, tmp_path: Path) -> None:
    run(inputs, tmp_path / "grpo", steps=4)
    state = tmp_path / "grpo" / "resume" / "step-00000003"
    with pytest.raises(ConfigError, match=r"objective\.name"):
        run(inputs, tmp_path / "other", state, objective={"name": "simko", "kl": 0.05})
    with pytest.raises(ConfigError, match=r"objective\.kl"):
        run(inputs, tmp_path / "weight", state, objective={"name": "grpo", "kl": 0.1})
    with pytest.raises(ConfigError, match="belongs to a training"):
        job = make_job(inputs, tmp_path / "rows", settings(), state)
        train(job, load_language_model(job.model), load_tokenizer(job.model))
    make_files(tmp_path / "inputs", seed=1)
    with pytest.raises(ConfigError, match=r"input model\.safetensors"):
        run(tmp_path / "inputs", tmp_path / "model", state)
    with pytest.raises(ConfigError, match="resume_from"):
        run(inputs, tmp_path / "none", tmp_path)


def test_a_state_of_other_ranks_says_how_to_go_on(inputs: Path, tmp_path: Path) -> None:
    run(inputs, tmp_path / "one", steps=4)
    state = tmp_path / "one" / "resume" / "step-00000003"
    facts = json.loads((state / "state.json").read_text())
    (state / "state.json").write_text(json.dumps(facts | {"ranks": 2}))
    with pytest.raises(ConfigError, match=r"shards of 2 ranks.*model/"):
        run(inputs, tmp_path / "other", state)


def test_a_state_serves_a_longer_training(inputs: Path, tmp_path: Path) -> None:
    run(inputs, tmp_path / "short", steps=4)
    state = tmp_path / "short" / "resume" / "step-00000003"
    longer = run(inputs, tmp_path / "longer", state, steps=6, probe_every=2)
    assert distance(longer, run(inputs, tmp_path / "whole", steps=6)) == 0.0
