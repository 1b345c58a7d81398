"""SPIN: the rows' own answers against what the policy says at the beginning of an iteration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynolab.data.rows import PromptRow, read_rows, write_rows
from dynolab.errors import ConfigError
from dynolab.rollouts.rewards import ALLOWED
from dynolab.training.job import TrainJob
from dynolab.training.loop import train
from dynolab.training.record import StepRecord
from models.language import load_language_model, load_tokenizer
from tests.training.small import distance, group_settings, make_files, make_job, trained_weights

SPIN = group_settings(objective={"name": "spin"}, completions=1, record_steps=[0, 2])


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainJob:
    monkeypatch.setenv(ALLOWED, "tests.training.rewards")
    make_files(tmp_path)
    return make_job(tmp_path, tmp_path / "whole", SPIN)


def run(job: TrainJob) -> None:
    train(job, load_language_model(job.model), load_tokenizer(job.model))


def test_an_iteration_begins_at_its_reference(job: TrainJob) -> None:
    run(job)
    lines = (job.output / "metrics.jsonl").read_text().splitlines()
    logged = [json.loads(line)["metrics"] for line in lines]
    for number, values in enumerate(logged):  # an iteration has two steps
        assert (abs(values["train/margin"]) < 1e-6) == (number % 2 == 0)
    # β/2 on both sides where policy and reference are one.
    assert logged[0]["train/dynamic_learning_rate"] == pytest.approx(0.05)


def test_pairs_are_the_rows_answers_against_samples(job: TrainJob) -> None:
    run(job)
    tokenizer = load_tokenizer(job.model)
    own = {row.id: row.answer for row in read_rows(job.examples, PromptRow)}
    samples = []
    for step in (0, 2):
        record = StepRecord.load(job.output / "forces" / f"step-{step:08d}")
        assert record.facts.objective.name == "spin"
        for example in record.examples:
            sides = example.named()
            response = sides["chosen"].ids[sides["chosen"].prompt_length :]
            text = tokenizer.decode(response, skip_special_tokens=True)
            assert text == (own[example.id] or "").strip()
            samples.append(sides["rejected"].ids)
    assert len(set(samples)) > 1


def test_a_run_stopped_within_an_iteration_ends_with_the_same_bits(
    job: TrainJob, tmp_path: Path
) -> None:
    run(job)
    state = job.resume_out / "step-00000003"
    resumed = make_job(tmp_path, tmp_path / "resumed", SPIN, state)
    run(resumed)
    assert distance(trained_weights(job), trained_weights(resumed)) == 0.0


def test_rows_without_an_answer_are_refused(job: TrainJob) -> None:
    rows = [row.model_copy(update={"answer": None}) for row in read_rows(job.examples, PromptRow)]
    write_rows(job.examples, rows)
    with pytest.raises(ConfigError, match=r"data\.answer.*24 rows have none, the first is r0"):
        run(job)
