"""KTO: its reference point follows the policy, and recorded steps have it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dynolab.data.encode import Encoded, EncodedExample
from dynolab.forces import PolicyFunction, replay_error, split_step
from dynolab.training.examples import unrelated
from models.language import load_language_model
from tests.training.small import metrics, run_small, settings, step_record

STEEP = {"name": "sgd", "learning_rate": 3.3}


def test_unrelated_answers_are_those_of_the_row_before_cut_to_the_longest_row() -> None:
    rows = [
        EncodedExample("a", Encoded((1, 2, 10, 11, 12), 2), None),
        EncodedExample("b", Encoded((3, 20), 1), None),
        EncodedExample("c", Encoded((4, 5, 6, 7, 30), 4), None),
    ]
    assert unrelated(rows) == [
        Encoded((1, 2, 30), 2),
        Encoded((3, 10, 11, 12), 1),
        Encoded((4, 5, 6, 7, 20), 4),
    ]
    assert unrelated([rows[2], rows[0]])[0] == Encoded((4, 5, 6, 7, 10), 4)


def test_the_drift_is_the_mean_log_ratio_on_unrelated_answers(inputs: Path, tmp_path: Path) -> None:
    config = settings(
        objective={"name": "kto", "beta": 0.5, "undesirable_weight": 0.1},
        optimizer=STEEP,
        steps=2,
        checkpoint_every=0,
        warmup_steps=0,
        record_steps=[1],
    )
    job = run_small(inputs, tmp_path, config)
    drifts = [values["train/drift"] for values in metrics(job) if "train/drift" in values]
    assert drifts[0] == pytest.approx(0.0, abs=1e-4)
    record = step_record(job, 1)
    assert {example.drift for example in record.examples} == {drifts[1]}
    assert {example.label for example in record.examples} == {True, False}
    policy = PolicyFunction(load_language_model(job.model), torch.float64)
    split = split_step(record, policy)
    assert replay_error(split, record) < 1e-4
    assert drifts[1] > 0.01
    without = tuple(example.model_copy(update={"drift": 0.0}) for example in record.examples)
    wrong = split_step(replace(record, examples=without), policy)
    assert replay_error(wrong, record) > 1e-3
