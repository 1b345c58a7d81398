"""What probes decide: the alarm on the gap, and the model of the best probe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from dynolab.errors import ConfigError
from dynolab.results.study import AlarmRing, BestProbe, MetricsLine
from dynolab.training.alarm import GAP, RANG, RISE, Alarm, AlarmConfig
from dynolab.training.config import TrainConfig
from dynolab.training.job import TrainJob
from tasks.runtime.keys import canonical
from tests.training.interrupted import interrupt
from tests.training.small import (
    apart,
    distance,
    logged,
    run_small,
    settings,
    state,
    summary,
    trained_weights,
)

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
GROWING, WIDE = [5.0, 6.0, 8.0, 9.0], [90.0, 60.0, 48.0]


@pytest.mark.parametrize(
    ("gaps", "bounds", "rings"),
    [
        (GROWING, {"rise": 2.5}, [2]),
        (GROWING, {"gap": 7.0}, [2]),
        (GROWING, {"gap": 5.5, "rise": 3.5}, [1]),
        (GROWING, {"rise": 4.0}, []),
        (WIDE, {"gap": 40.0}, []),
        ([90.0, 90.0, 91.0], {"gap": 40.0}, [2]),
        ([90.0], {"gap": 40.0}, []),
    ],
)
def test_it_rings_once_and_only_above_its_bounds_where_the_gap_has_grown(
    gaps: list[float], bounds: dict[str, float], rings: list[int]
) -> None:
    alarm = Alarm(AlarmConfig(**bounds))
    assert [s for s, gap in enumerate(gaps) if RANG in alarm.update(s, {GAP: gap})] == rings


def test_a_bound_on_the_margin_rings_where_as_much_is_learned_whatever_the_gap() -> None:
    def probed(margin: float) -> dict[str, float]:
        return {GAP: 5.0, "probe/chosen/logp": -9.0, "probe/rejected/logp": -9.0 - margin}

    alarm = Alarm(AlarmConfig(margin=8.0))
    rings = [RANG in alarm.update(s, probed(m)) for s, m in enumerate((3.0, 9.0, 11.0, 12.0))]
    assert rings == [False, False, True, False]
    assert alarm.ring == AlarmRing(step=2, gap=5.0, rise=0.0, stopped=True)
    assert canonical(AlarmConfig(rise=1.0)) == canonical(AlarmConfig(rise=1.0, margin=None))
    assert "margin" not in AlarmConfig(rise=1.0).model_dump()


def test_replayed_metrics_count_like_new_ones() -> None:
    history = {0: {GAP: 5.0}, 1: {"train/loss": 1.0}, 2: {GAP: 7.0}, 4: {GAP: 9.0}}
    lines = [
        MetricsLine(step=step, examples=0, time=0.0, metrics=metrics)
        for step, metrics in history.items()
    ]
    alarm = Alarm(AlarmConfig(rise=2.5), lines)
    assert alarm.ring == AlarmRing(step=4, gap=9.0, rise=4.0, stopped=True)
    assert alarm.stops
    assert alarm.update(6, {GAP: 10.0}) == {RISE: 5.0}
    assert not Alarm(AlarmConfig(rise=2.5, stop=False), lines).stops


def test_a_probe_that_found_no_gap_says_so() -> None:
    with pytest.raises(ConfigError, match=r"alarm.*too long for the model's context"):
        Alarm(AlarmConfig(rise=1.0)).update(0, {"probe/rejected/logp": -3.0})


def test_training_without_an_alarm_has_the_key_that_it_had() -> None:
    assert "alarm" not in canonical(TrainConfig())
    assert "alarm" not in TrainConfig().model_dump()
    ringing = settings(alarm={"rise": 1.0})
    assert canonical(ringing)["alarm"] == {"gap": None, "rise": 1.0, "stop": True}


@pytest.fixture(scope="module")
def quiet(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainJob:
    """A training without an alarm."""
    return run_small(inputs, tmp_path_factory.mktemp("quiet"), settings(**SQUEEZING))


@pytest.fixture(scope="module")
def gaps(quiet: TrainJob) -> dict[int, float]:
    """By step, of the training without an alarm."""
    return {line.step: line.metrics[GAP] for line in logged(quiet) if GAP in line.metrics}


@pytest.fixture(scope="module")
def rise(gaps: dict[int, float]) -> float:
    """A rise that the gap has above it after 4 steps for the first time."""
    before = max(gap for step, gap in gaps.items() if step < 4)
    assert gaps[4] > before, "the gap grows here"
    return (gaps[4] + before) / 2 - gaps[0]


def test_it_ends_training_with_the_model_of_that_step(
    inputs: Path, tmp_path: Path, gaps: dict[int, float], rise: float
) -> None:
    job = run_small(inputs, tmp_path / "alarmed", settings(**SQUEEZING, alarm={"rise": rise}))
    short = run_small(inputs, tmp_path / "short", settings(**SQUEEZING | {"steps": 4}))
    assert apart(job, short) == 0.0
    assert (job.output / "probes.jsonl").read_text() == (short.output / "probes.jsonl").read_text()
    ring = AlarmRing(step=4, gap=gaps[4], rise=gaps[4] - gaps[0], stopped=True)
    assert (summary(job).steps, summary(job).alarm) == (4, ring)
    assert [line.step for line in logged(job) if RANG in line.metrics] == [4]
    rises = {line.step: line.metrics[RISE] for line in logged(job) if GAP in line.metrics}
    assert rises == {step: gaps[step] - gaps[0] for step in (0, 2, 4)}


def test_one_that_never_rings_changes_no_bit(inputs: Path, tmp_path: Path, quiet: TrainJob) -> None:
    job = run_small(inputs, tmp_path, settings(**SQUEEZING, alarm={"rise": 1e9}))
    assert apart(job, quiet) == 0.0
    for file in ("probes.jsonl", "summary.json"):
        assert (job.output / file).read_bytes() == (quiet.output / file).read_bytes()
    assert "alarm" not in (quiet.output / "summary.json").read_text()


def test_one_that_only_tells_lets_training_go_on(
    inputs: Path, tmp_path: Path, quiet: TrainJob, gaps: dict[int, float], rise: float
) -> None:
    alarm = {"rise": rise, "stop": False}
    job = run_small(inputs, tmp_path, settings(**SQUEEZING, alarm=alarm))
    assert apart(job, quiet) == 0.0
    ring = AlarmRing(step=4, gap=gaps[4], rise=gaps[4] - gaps[0], stopped=False)
    assert (summary(job).steps, summary(job).alarm) == (8, ring)


@pytest.mark.parametrize("step", [3, 6])
def test_a_resumed_training_rings_as_the_whole_one(
    inputs: Path, tmp_path: Path, rise: float, step: int
) -> None:
    """The state after 6 steps is from a training whose alarm has only told, at step 4."""
    config = settings(**SQUEEZING, alarm={"rise": rise, "stop": step == 3})
    whole = run_small(inputs, tmp_path / "whole", config)
    first = run_small(inputs, tmp_path / "first", settings(**SQUEEZING) if step == 3 else config)
    resumed = run_small(inputs, tmp_path / "resumed", config, state(first, step))
    assert apart(whole, resumed) == 0.0
    assert summary(whole) == summary(resumed)


REJECTED = "probe/rejected/logp"


def run_best(inputs: Path, folder: Path, **changes: Any) -> TrainJob:
    return run_small(inputs, folder, settings(record_steps=(), **changes))


@pytest.mark.parametrize("largest", [True, False])
def test_the_result_is_the_model_of_the_best_probe(
    inputs: Path, tmp_path: Path, largest: bool
) -> None:
    job = run_best(inputs, tmp_path / "best", best={"metric": REJECTED, "largest": largest})
    probed = {line.step: line.metrics[REJECTED] for line in logged(job) if REJECTED in line.metrics}
    step = (max if largest else min)(probed, key=lambda step: probed[step])
    assert summary(job).best == BestProbe(step=step, metric=REJECTED, value=probed[step])
    assert summary(job).steps == 6
    assert not (job.output / "best").exists()
    if step == 0:
        expected = load_file(job.model / "model.safetensors")
    else:
        expected = trained_weights(run_best(inputs, tmp_path / "short", steps=step))
    assert distance(trained_weights(job), expected) == 0.0


def test_without_it_nothing_changes(inputs: Path, tmp_path: Path) -> None:
    plain = run_best(inputs, tmp_path)
    assert summary(plain).best is None
    assert "best" not in (plain.output / "summary.json").read_text()
    assert "best" not in settings().model_dump(mode="json")


@pytest.mark.parametrize("best", [{"metric": REJECTED}, {"metric": REJECTED, "largest": False}])
def test_a_resumed_training_knows_the_best_probe_of_before(
    inputs: Path, tmp_path: Path, best: dict[str, Any]
) -> None:
    config = settings(best=best, checkpoint_every=2, record_steps=())
    runs = interrupt(inputs, tmp_path, config, seed="one")
    assert runs.identical
    assert summary(runs.whole) == summary(runs.resumed)


def test_of_adapters_the_merged_model_is_the_best(inputs: Path, tmp_path: Path) -> None:
    best = {"metric": REJECTED, "largest": False}
    whole = run_best(inputs, tmp_path / "whole", lora={"rank": 2}, best=best)
    probe = summary(whole).best
    assert probe is not None and probe.step > 0
    short = run_best(inputs, tmp_path / "short", lora={"rank": 2}, steps=probe.step)
    assert apart(whole, short) == 0.0


def test_a_metric_that_no_probe_measures_is_named(inputs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"best\.metric = 'train/loss'.*probe/chosen/logp"):
        run_best(inputs, tmp_path, best={"metric": "train/loss"})
