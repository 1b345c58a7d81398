"""What a study measures of its trainings: answers, squeezing, and the alarm that rings."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from dynolab.data.rows import read_value
from dynolab.results.study import (
    AlarmRing,
    Answer,
    RisenMass,
    TokenProbability,
    TrainingSummary,
    records,
)
from dynolab.training.alarm import RANG, AlarmConfig
from dynolab.training.config import LoraConfig, OptimizerConfig, TrainConfig
from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters
from flows.study.steps import study_steps
from tasks.probe import MODELS, PROBE, ProbeConfig
from tasks.runtime.training_monitor import TAG
from tasks.runtime.work import StageResult
from tasks.study_squeezing import SQUEEZING, SqueezingJob
from tasks.training import PREFERENCE
from tests.flows.analysed import PLAIN, Analysed

SMALL = TrainConfig.model_validate(
    {
        "objective": {"name": "dpo"},
        "engine": PLAIN,
        "steps": 3,
        "batch_size": 4,
        "optimizer": {"name": "sgd", "learning_rate": 1e-2},
        "record_steps": [0, 2],
    }
)


@pytest.fixture(scope="module")
def measured(analysed: Analysed) -> StageResult:
    """The stage on an SFT, a DPO and one of adapters."""
    trained = analysed.run(PREFERENCE, SMALL, data=analysed.data, model=analysed.sft)
    adapted = SMALL.model_copy(update={"lora": LoraConfig(rank=2)})
    adapters = analysed.run(PREFERENCE, adapted, data=analysed.data, model=analysed.sft)
    models = {"base": analysed.base, "sft": analysed.sft, "preference": trained}
    asked = ProbeConfig(answers=1, answer_tokens=4)
    probe = analysed.run(PROBE, asked, data=analysed.data, **models)
    job = SqueezingJob(pairs=3, trainings={"sft": "base", "preference": "sft", "adapters": "sft"})
    inputs = {"data": analysed.data, "probe": probe, "adapters": adapters, **models}
    return analysed.run(SQUEEZING, job, "measured", **inputs)


def test_every_state_of_every_training_has_its_risen_mass(
    analysed: Analysed, measured: StageResult
) -> None:
    rows = analysed.rows(measured, "risen.jsonl", RisenMass)
    states = {(row.training, row.step) for row in rows}
    assert states == {
        ("sft", 1),
        ("sft", 3),
        ("sft", 4),
        ("preference", 2),
        ("preference", 3),
        ("adapters", 2),
        ("adapters", 3),
    }
    assert len(rows) == len(states) * 3 * 2 * 2  # pairs of each split, both answers
    assert all(0 <= row.argmax <= row.risen + 1e-9 for row in rows)
    assert all(0 <= row.own <= row.risen + 1e-9 and row.risen <= row.tokens for row in rows)
    assert min(row.risen for row in rows if row.training == "sft") > 0


def test_the_main_training_has_a_squeezed_position_in_every_state(
    analysed: Analysed, measured: StageResult
) -> None:
    rows = analysed.rows(measured, "position.jsonl", TokenProbability)
    assert [row.step for row in rows[::6]] == [0, 2, 3]
    assert len({row.pair_id for row in rows}) == 1
    assert [row.role for row in rows[:6]].count("chosen") == 1
    # y* was the likeliest token at the start.
    (likeliest,) = [row for row in rows[:6] if row.role == "argmax"]
    assert likeliest.probability == max(row.probability for row in rows[:6])


def test_recorded_steps_are_foretold(analysed: Analysed, measured: StageResult) -> None:
    forecasts = records(analysed.folder(measured), "forecasts.jsonl")
    steps = [("sft", step, "chosen") for step in (1, 3)]
    steps += [
        (name, step, side)
        for name in ("preference", "adapters")
        for step in (0, 2)
        for side in ("chosen", "rejected")
    ]
    assert [(row["training"], row["step"], row["side"]) for row in forecasts] == steps
    for row in forecasts:
        assert 0 <= row["auc"] <= 1 and row["right"] <= row["tokens"]
        if row["training"] == "adapters":  # they leave the head where it is
            assert row["explained"] == 0
        elif row["training"] == "preference":
            assert 0 < row["explained"] < 1.5


def test_an_alarm_ends_the_stage_and_is_told(analysed: Analysed) -> None:
    """Any growth of the gap is too much here."""
    config = SMALL.model_copy(
        update={
            "steps": 10,
            "probe_every": 1,
            "record_steps": (),
            "optimizer": OptimizerConfig(name="sgd", learning_rate=0.1),
            "alarm": AlarmConfig(rise=0.002),
        }
    )
    done = analysed.run(PREFERENCE, config, data=analysed.data, model=analysed.sft)
    run = analysed.tracking.runs[-1]
    summary = read_value(analysed.folder(done) / "summary.json", TrainingSummary)
    assert done.metrics["stopped_at"] == summary.steps < 10
    assert isinstance(summary.alarm, AlarmRing)
    assert run.tagged[TAG].startswith(f"step {summary.steps}: the gap")
    assert [at for at, values in run.values if RANG in values] == [summary.steps]


def test_a_study_measures_its_trainings_and_those_on_the_same_data() -> None:
    steps = {step.name: step for step in study_steps(StudyParameters())}
    assert steps["squeezing"].config.trainings == {"sft": "base", "preference": "sft"}
    contrasted = load_parameters(StudyParameters, None, ["contrasts=[resampled, flat_world]"])
    step = next(step for step in study_steps(contrasted) if step.name == "squeezing")
    assert step.config.trainings == {"sft": "base", "preference": "sft", "resampled": "sft"}
    assert set(step.inputs) == {"data", "probe", "base", "sft", "preference", "resampled"}
    assert json.loads(step.config.model_dump_json())["main"] == "preference"


def test_heldout_answers_are_searched_for_those_of_training_questions(analysed: Analysed) -> None:
    models = {"base": analysed.base, "sft": analysed.sft, "preference": analysed.sft}
    found = analysed.run(PROBE, ProbeConfig(answers=3), data=analysed.data, **models)
    answers = analysed.rows(found, "answers.jsonl", Answer)
    splits = {"train": 3, "heldout": 3}
    asked = Counter((answer.model, answer.split) for answer in answers)
    assert asked == {(name, split): n for name in MODELS for split, n in splits.items()}
    assert {answer.taken_from for answer in answers if answer.split == "train"} == {None}
    for name in MODELS:
        said = [answer for answer in answers if answer.model == name and answer.split == "heldout"]
        share = sum(one.taken_from is not None for one in said) / len(said)
        assert found.metrics[f"probe/heldout/hallucinated/{name}"] == share
