"""The stage of squeezing on a small store, and what a stage tells whose training's alarm rings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynolab.data.rows import Example, read_value, write_rows
from dynolab.data.sources.config import DataConfig
from dynolab.errors import ConfigError
from dynolab.results.study import AlarmRing, ProbeScore, RisenMass, TrainingSummary, records
from dynolab.training.alarm import RANG, AlarmConfig
from dynolab.training.config import LoraConfig, OptimizerConfig, TrainConfig
from flows.parameters import load_parameters
from flows.study import StudyParameters, study_steps
from tasks.data import DATA
from tasks.probe import PROBE, ProbeConfig
from tasks.runtime.training_monitor import TAG
from tasks.runtime.work import StageResult
from tasks.study_squeezing import SQUEEZING, SqueezingJob
from tasks.training import PREFERENCE, SFT
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
        }
    )
    quiet = analysed.run(PREFERENCE, config, data=analysed.data, model=analysed.sft)
    assert "stopped_at" not in quiet.metrics
    gaps = gaps_of(analysed, quiet)
    step = next(step for step, gap in gaps.items() if gap - gaps[0] > 0.002)
    alarmed = config.model_copy(update={"alarm": AlarmConfig(rise=0.002)})
    done = analysed.run(PREFERENCE, alarmed, data=analysed.data, model=analysed.sft)
    run = analysed.tracking.runs[-1]
    summary = read_value(analysed.folder(done) / "summary.json", TrainingSummary)
    assert done.metrics["stopped_at"] == summary.steps == step < 10
    assert isinstance(summary.alarm, AlarmRing)
    assert run.tagged[TAG].startswith(f"step {step}: the gap")
    assert [at for at, values in run.values if RANG in values] == [step]


def gaps_of(lab: Analysed, result: StageResult) -> dict[int, float]:
    gaps: dict[int, list[float]] = {}
    for row in lab.rows(result, "probes.jsonl", ProbeScore):
        if (row.split, row.kind) == ("train", "chosen") and row.argmax_logp is not None:
            gaps.setdefault(row.step, []).append(row.argmax_logp - row.logp)
    return {step: sum(each) / len(each) for step, each in gaps.items()}


def test_an_alarm_without_watched_answers_is_refused_before_training(
    analysed: Analysed, tmp_path: Path
) -> None:
    pairs = [Example(id=f"p{n}", prompt="q", chosen="a b", rejected="c") for n in range(8)]
    write_rows(tmp_path / "pairs.jsonl", pairs)
    file = str(tmp_path / "pairs.jsonl")
    blind = analysed.run(DATA, DataConfig(source="file", path=file, heldout_rows=2, probe_pairs=0))
    config = SMALL.model_copy(update={"probe_every": 1, "alarm": AlarmConfig(rise=1.0)})
    with pytest.raises(ConfigError, match="no probe is the chosen answer of a training pair"):
        analysed.run(SFT, config, data=blind, model=analysed.base)


def test_a_study_measures_its_trainings_and_those_on_the_same_data() -> None:
    steps = {step.name: step for step in study_steps(StudyParameters())}
    assert steps["squeezing"].config.trainings == {"sft": "base", "preference": "sft"}
    contrasted = load_parameters(StudyParameters, None, ["contrasts=[resampled, flat_world]"])
    step = next(step for step in study_steps(contrasted) if step.name == "squeezing")
    assert step.config.trainings == {"sft": "base", "preference": "sft", "resampled": "sft"}
    assert set(step.inputs) == {"data", "probe", "base", "sft", "preference", "resampled"}
    assert json.loads(step.config.model_dump_json())["main"] == "preference"
