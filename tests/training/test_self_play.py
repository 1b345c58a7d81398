"""SPIN: the rows' own answers against what the policy says at the beginning of an iteration."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynolab.data.rows import PromptRow, read_rows
from dynolab.training.job import TrainJob
from models.language import load_tokenizer
from tests.training.small import group_settings, metrics, run_small, step_record


@pytest.fixture(scope="module")
def job(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainJob:
    config = group_settings(objective={"name": "spin"}, completions=1, record_steps=[0, 2])
    return run_small(inputs, tmp_path_factory.mktemp("spin"), config)


def test_an_iteration_begins_at_its_reference(job: TrainJob) -> None:
    logged = metrics(job)
    for number, values in enumerate(logged):  # an iteration has two steps
        assert (abs(values["train/margin"]) < 1e-6) == (number % 2 == 0)
    # β/2 on both sides where policy and reference are one.
    assert logged[0]["train/dynamic_learning_rate"] == pytest.approx(0.05)


def test_pairs_are_the_rows_answers_against_samples(job: TrainJob) -> None:
    tokenizer = load_tokenizer(job.model)
    own = {row.id: row.answer for row in read_rows(job.examples, PromptRow)}
    samples = set()
    for step in (0, 2):
        record = step_record(job, step)
        assert record.facts.objective.name == "spin"
        for example in record.examples:
            sides = example.named()
            response = sides["chosen"].ids[sides["chosen"].prompt_length :]
            text = tokenizer.decode(response, skip_special_tokens=True)
            assert text == (own[example.id] or "").strip()
            samples.add(sides["rejected"].ids)
    assert len(samples) > 1
