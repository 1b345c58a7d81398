"""What ends a training: one message each, and what it leaves to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dynolab.errors import DIVERGED, ConfigError, Diverged
from dynolab.rollouts.rewards import ALLOWED
from dynolab.training.config import GroupTrainConfig, TrainConfig
from dynolab.training.loop import train
from dynolab.training.recorded import RecordedExample, RecordedGroup, read_recorded
from models.language import load_language_model, load_tokenizer
from tests.training.small import group_settings, make_files, make_job, settings


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_files(folder)
    return folder


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "tests.training.rewards")


def run(inputs: Path, folder: Path, config: TrainConfig | GroupTrainConfig) -> None:
    job = make_job(inputs, folder, config)
    train(job, load_language_model(job.model), load_tokenizer(job.model))


@pytest.mark.parametrize("logs", [True, False])
def test_a_diverged_batch_is_named_and_kept(inputs: Path, tmp_path: Path, logs: bool) -> None:
    job = make_job(inputs, tmp_path, settings())
    if logs:
        (tmp_path / "logs").mkdir()
        job = job.model_copy(update={"logs": tmp_path / "logs"})
    policy = load_language_model(job.model)
    with torch.no_grad():
        policy.get_output_embeddings().weight.fill_(float("nan"))
    with pytest.raises(Diverged, match=rf"rows r.*lower optimizer.*{DIVERGED}") as stopped:
        train(job, policy, load_tokenizer(job.model))
    kept = tmp_path / ("logs" if logs else "output") / DIVERGED
    examples = [read_recorded(line) for line in kept.read_text().splitlines()]
    assert [example.id for example in examples] == stopped.value.ids
    assert all(isinstance(example, RecordedExample) and example.rejected for example in examples)


def test_a_gradient_without_numbers_ends_training_too(inputs: Path, tmp_path: Path) -> None:
    job = make_job(inputs, tmp_path, settings())
    policy = load_language_model(job.model)
    policy.get_output_embeddings().weight.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(Diverged, match=r"gradient norm = nan: .*rows r"):
        train(job, policy, load_tokenizer(job.model))
    assert not list(job.resume_out.iterdir())
    assert (job.output / DIVERGED).exists()


def test_a_group_that_diverged_is_kept_with_its_completions(inputs: Path, tmp_path: Path) -> None:
    """A rate that no number survives: the policy that sampled the second rollout is no policy."""
    sgd = {"name": "sgd", "learning_rate": 1e30}
    config = group_settings(optimizer=sgd, clip_norm=1e9, updates_per_rollout=5, checkpoint_every=0)
    with pytest.raises(Diverged) as stopped:
        run(inputs, tmp_path, config)
    lines = (tmp_path / "output" / DIVERGED).read_text().splitlines()
    groups = [read_recorded(line) for line in lines]
    assert [group.id for group in groups] == stopped.value.ids
    assert all(isinstance(group, RecordedGroup) and len(group.completions) == 4 for group in groups)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("sometimes_nan", r"reward tests\.training\.rewards\.sometimes_nan of row r\d+ = nan"),
        ("one_short", r"reward tests\.training\.rewards\.one_short of row r\d+ = '3 values'.*4"),
    ],
)
def test_a_reward_that_is_none_is_named_with_its_prompt(
    inputs: Path, tmp_path: Path, reward: str, message: str
) -> None:
    config = group_settings(rewards=[{"name": f"tests.training.rewards.{reward}"}])
    with pytest.raises(ConfigError, match=message):
        run(inputs, tmp_path, config)


def test_prompts_that_leave_no_room_are_refused_with_the_room_they_need(
    inputs: Path, tmp_path: Path
) -> None:
    message = (
        r"row r\d+ exceeds the model's context of 48 tokens.*overlong.*lower max_new_tokens = 44"
    )
    with pytest.raises(ConfigError, match=message):
        run(inputs, tmp_path / "error", group_settings(max_new_tokens=44))
    dropped: dict[str, Any] = {"max_new_tokens": 48, "overlong": "drop"}
    with pytest.raises(ConfigError, match=r"0 of 24 prompts kept.*max_new_tokens"):
        run(inputs, tmp_path / "none", group_settings(**dropped))
