"""What ends a training: one message each, and what it leaves to look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dynolab.data.rows import Example, PromptRow, read_rows, write_rows
from dynolab.errors import DIVERGED, ConfigError, Diverged
from dynolab.training.config import GroupTrainConfig, TrainConfig
from dynolab.training.loop import train
from dynolab.training.step_batch import RecordedExample, RecordedGroup, read_recorded
from models.language import load_language_model, load_tokenizer
from tests.training.small import group_settings, make_job, run, run_small, settings


@pytest.mark.parametrize(
    ("made", "changes", "field"),
    [
        (settings, {"engine": {"kind": "deepspeed", "ranks": 3}}, "batch_size"),
        (settings, {"micro_batch_size": 3}, "micro_batch_size"),
        (settings, {"engine": {"kind": "plain", "ranks": 2}}, r"engine\.ranks"),
        (
            settings,
            {"engine": {"zero_stage": 0, "dtype": "bf16"}},
            r"engine\.zero_stage",
        ),
        (settings, {"engine": {"zero_stage": 0, "offload": True}}, r"engine\.offload"),
        (settings, {"engine": {"reproducible": False}}, r"engine\.reproducible"),
        (settings, {"record_steps": [6]}, "record_steps"),
        (settings, {"alarm": {}}, "alarm"),
        (settings, {"alarm": {"stop": True}}, "alarm"),
        (settings, {"alarm": {"rise": 1.0}, "probe_every": 0}, "probe_every"),
        (settings, {"best": {}, "probe_every": 0}, "probe_every"),
        (group_settings, {"completions": 1}, "completions"),
        (group_settings, {"rewards": []}, "rewards"),
        (group_settings, {"seed": -1}, "seed"),
        (
            group_settings,
            {"objective": {"name": "grpo", "aggregation": "dr_grpo", "max_tokens": 7}},
            r"objective\.max_tokens",
        ),
    ],
)
def test_settings_that_do_not_fit_are_named(
    made: Callable[..., object], changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{field} = "):
        made(**changes)


@pytest.mark.parametrize(
    ("config", "row", "message"),
    [
        (
            settings(),
            Example(id="a", prompt="w1", chosen=" w2"),
            r"data\.rejected.*needs a rejected answer.*1 rows have none, the first is a",
        ),
        (
            settings(objective={"name": "sppo", "beta": 0.1, "labels": "soft"}),
            Example(id="a", prompt="w1", chosen=" w2", rejected=" w3"),
            r"data\.wins.*1 rows have none, the first is a",
        ),
        (
            group_settings(objective={"name": "spin"}, completions=1),
            PromptRow(id="a", prompt="w1"),
            r"data\.answer.*1 rows have none, the first is a",
        ),
    ],
    ids=["dpo", "sppo", "spin"],
)
def test_rows_without_what_the_objective_reads_are_refused(
    inputs: Path,
    tmp_path: Path,
    config: TrainConfig | GroupTrainConfig,
    row: Example | PromptRow,
    message: str,
) -> None:
    job = make_job(inputs, tmp_path, config)
    rows = list(read_rows(job.examples, type(row)))
    write_rows(tmp_path / "rows.jsonl", [*rows[:3], row, *rows[4:]])
    with pytest.raises(ConfigError, match=message):
        run(job.model_copy(update={"examples": tmp_path / "rows.jsonl"}))
    assert not job.output.exists()


def test_a_diverged_batch_is_named_and_kept(inputs: Path, tmp_path: Path) -> None:
    job = make_job(inputs, tmp_path, settings())
    policy = load_language_model(job.model)
    with torch.no_grad():
        policy.get_output_embeddings().weight.fill_(float("nan"))
    with pytest.raises(Diverged, match=rf"rows r.*lower optimizer.*{DIVERGED}") as stopped:
        train(job, policy, load_tokenizer(job.model))
    lines = (tmp_path / "output" / DIVERGED).read_text().splitlines()
    examples = [read_recorded(line) for line in lines]
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
        run_small(inputs, tmp_path, config)
    lines = (tmp_path / "output" / DIVERGED).read_text().splitlines()
    groups = [read_recorded(line) for line in lines]
    assert [group.id for group in groups] == stopped.value.ids
    assert all(isinstance(group, RecordedGroup) and len(group.completions) == 4 for group in groups)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rewards": [{"name": "tests.training.rewards.sometimes_nan"}]},
            r"reward tests\.training\.rewards\.sometimes_nan of row r\d+ = nan",
        ),
        (
            {"rewards": [{"name": "tests.training.rewards.one_short"}]},
            r"reward tests\.training\.rewards\.one_short of row r\d+ = '3 values'.*4",
        ),
        (
            {"max_new_tokens": 44},
            r"row r\d+ exceeds the model's context of 48 tokens.*overlong.*"
            r"lower max_new_tokens = 44",
        ),
        (
            {"max_new_tokens": 48, "overlong": "drop"},
            r"0 of 24 prompts kept.*max_new_tokens",
        ),
    ],
    ids=["reward of nan", "reward too few", "no room", "no room for any"],
)
def test_what_cannot_work_with_these_prompts_is_named(
    inputs: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_small(inputs, tmp_path, group_settings(**changes))


def test_a_reward_that_fails_names_its_prompt(inputs: Path, tmp_path: Path) -> None:
    failing = [{"name": "tests.training.rewards.fourth_fails"}]
    with pytest.raises(ConfigError, match=r"fails on row r3 \(ZeroDivisionError: no words"):
        run_small(inputs, tmp_path, group_settings(rewards=failing, batch_size=24))
