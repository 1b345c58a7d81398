"""The alarm on the gap: when it rings, that it ends a training there, and that it changes none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dynolab.data.rows import read_rows, read_value, write_rows
from dynolab.errors import ConfigError
from dynolab.results.study import AlarmRing, MetricsLine, TrainingSummary
from dynolab.training.alarm import GAP, RANG, RISE, Alarm, AlarmConfig, check_watched
from dynolab.training.config import TrainConfig
from dynolab.training.job import TrainJob
from dynolab.training.loop import train
from models.language import load_language_model, load_tokenizer
from tasks.runtime.keys import canonical
from tests.training.small import distance, make_files, make_job, settings, trained_weights

# Plain steps on rejected answers: the gap grows at every probe.
SQUEEZING: dict[str, Any] = {
    "optimizer": {"name": "sgd", "learning_rate": 1.0},
    "clip_norm": 10.0,
    "warmup_steps": 0,
    "steps": 8,
    "probe_every": 2,
    "checkpoint_every": 3,
    "record_steps": [],
}


def rings(gaps: list[float], **bounds: Any) -> list[int]:
    alarm = Alarm(AlarmConfig(**bounds))
    return [step for step, gap in enumerate(gaps) if RANG in alarm.update(step, {GAP: gap})]


def test_it_rings_once_and_only_above_its_bounds() -> None:
    assert rings([5.0, 6.0, 8.0, 9.0], rise=2.5) == [2]
    assert rings([5.0, 6.0, 8.0, 9.0], gap=7.0) == [2]
    assert rings([5.0, 6.0, 8.0, 9.0], gap=5.5, rise=3.5) == [1]
    assert rings([5.0, 6.0, 8.0, 9.0], rise=4.0) == []


def test_a_gap_that_was_wide_from_the_start_rings_only_where_it_grows() -> None:
    assert rings([90.0, 60.0, 48.0], gap=40.0) == []
    assert rings([90.0, 90.0, 91.0], gap=40.0) == [2]
    assert rings([90.0], gap=40.0) == []


def test_what_was_heard_before_counts_as_if_it_were_heard_now() -> None:
    logged = {0: {GAP: 5.0}, 1: {"train/loss": 1.0}, 2: {GAP: 7.0}, 4: {GAP: 9.0}}
    lines = [
        MetricsLine(step=step, examples=0, time=0.0, metrics=found)
        for step, found in logged.items()
    ]
    alarm = Alarm(AlarmConfig(rise=2.5), lines)
    assert alarm.ring == AlarmRing(step=4, gap=9.0, rise=4.0, stopped=True)
    assert alarm.stops
    assert alarm.update(6, {GAP: 10.0}) == {RISE: 5.0}
    assert not Alarm(AlarmConfig(rise=2.5, stop=False), lines).stops


def test_a_probe_that_found_no_gap_says_so() -> None:
    with pytest.raises(ConfigError, match=r"alarm.*too long for the model's context"):
        Alarm(AlarmConfig(rise=1.0)).update(0, {"probe/rejected/logp": -3.0})


@pytest.mark.parametrize(
    ("alarm", "field"),
    [({}, "alarm"), ({"stop": True}, "alarm"), ({"rise": 1.0, "probe_every": 0}, "probe_every")],
)
def test_an_alarm_that_can_never_ring_is_refused(alarm: dict[str, Any], field: str) -> None:
    changes = {"probe_every": alarm.pop("probe_every")} if "probe_every" in alarm else {}
    with pytest.raises(ConfigError, match=f"^{field}"):
        settings(alarm=alarm, **changes)


def test_an_alarm_needs_chosen_answers_of_training_pairs(inputs: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "none.jsonl", [])
    job = make_job(inputs, tmp_path, settings(alarm={"rise": 1.0}))
    job = job.model_copy(update={"probes": tmp_path / "none.jsonl"})
    with pytest.raises(ConfigError, match=r"alarm.*no chosen answer of a training pair"):
        run(job)
    check_watched(None, [])


def test_training_without_an_alarm_has_the_key_that_it_had(inputs: Path, tmp_path: Path) -> None:
    assert "alarm" not in canonical(TrainConfig())
    assert "alarm" not in TrainConfig().model_dump()
    assert canonical(settings(alarm={"rise": 1.0}))["alarm"] == {
        "gap": None,
        "rise": 1.0,
        "stop": True,
    }


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_files(folder)
    return folder


@pytest.fixture(scope="module")
def quiet(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainJob:
    """A training without an alarm."""
    job = make_job(inputs, tmp_path_factory.mktemp("quiet"), settings(**SQUEEZING))
    run(job)
    return job


def run(job: TrainJob) -> None:
    train(job, load_language_model(job.model), load_tokenizer(job.model))


def gaps(job: TrainJob) -> dict[int, float]:
    lines = read_rows(job.output / "metrics.jsonl", MetricsLine)
    return {line.step: line.metrics[GAP] for line in lines if GAP in line.metrics}


def bound_between(quiet: TrainJob, step: int) -> float:
    """A rise that the gap has above it at a step for the first time."""
    found = gaps(quiet)
    before = max(gap for known, gap in found.items() if known < step)
    assert found[step] > before, "the gap grows here"
    return (found[step] + before) / 2 - found[0]


def test_it_ends_training_with_the_model_of_that_step(
    inputs: Path, tmp_path: Path, quiet: TrainJob
) -> None:
    rise = bound_between(quiet, 4)
    job = make_job(inputs, tmp_path / "alarmed", settings(**SQUEEZING, alarm={"rise": rise}))
    run(job)
    short = make_job(inputs, tmp_path / "short", settings(**SQUEEZING | {"steps": 4}))
    run(short)
    assert distance(trained_weights(job), trained_weights(short)) == 0.0
    assert (job.output / "probes.jsonl").read_text() == (short.output / "probes.jsonl").read_text()
    summary = read_value(job.output / "summary.json", TrainingSummary)
    found = gaps(quiet)
    assert summary.steps == 4
    assert summary.alarm == AlarmRing(step=4, gap=found[4], rise=found[4] - found[0], stopped=True)
    told = [
        line.step
        for line in read_rows(job.output / "metrics.jsonl", MetricsLine)
        if RANG in line.metrics
    ]
    assert told == [4]


def test_one_that_never_rings_changes_no_bit(inputs: Path, tmp_path: Path, quiet: TrainJob) -> None:
    job = make_job(inputs, tmp_path, settings(**SQUEEZING, alarm={"rise": 1e9}))
    run(job)
    assert distance(trained_weights(job), trained_weights(quiet)) == 0.0
    for file in ("probes.jsonl", "summary.json"):
        assert (job.output / file).read_bytes() == (quiet.output / file).read_bytes()
    assert "alarm" not in json.loads((quiet.output / "summary.json").read_text())


def test_one_that_only_tells_lets_training_go_on(
    inputs: Path, tmp_path: Path, quiet: TrainJob
) -> None:
    alarm = {"rise": bound_between(quiet, 4), "stop": False}
    job = make_job(inputs, tmp_path, settings(**SQUEEZING, alarm=alarm))
    run(job)
    assert distance(trained_weights(job), trained_weights(quiet)) == 0.0
    summary = read_value(job.output / "summary.json", TrainingSummary)
    assert summary.steps == 8
    assert summary.alarm is not None
    assert (summary.alarm.step, summary.alarm.stopped) == (4, False)


@pytest.mark.parametrize("state", [3, 6])
def test_a_resumed_training_rings_as_the_whole_one(
    inputs: Path, tmp_path: Path, quiet: TrainJob, state: int
) -> None:
    """The state after 6 steps is from a training whose alarm has only told, at step 4."""
    rise = bound_between(quiet, 4)
    alarm = {"rise": rise, "stop": state == 3}
    whole = make_job(inputs, tmp_path / "whole", settings(**SQUEEZING, alarm=alarm))
    run(whole)
    first = make_job(inputs, tmp_path / "first", settings(**SQUEEZING))
    if state == 6:
        first = first.model_copy(update={"config": whole.config})
    run(first)
    resumed = make_job(
        inputs, tmp_path / "resumed", whole.config, first.resume_out / f"step-{state:08d}"
    )
    run(resumed)
    assert distance(trained_weights(whole), trained_weights(resumed)) == 0.0
    texts = [(job.output / "summary.json").read_text() for job in (whole, resumed)]
    assert texts[0] == texts[1]
