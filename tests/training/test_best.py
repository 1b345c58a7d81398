"""The result is the model of the best probe, where that is asked for, resumed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from dynolab.errors import ConfigError
from dynolab.results.study import BestProbe
from dynolab.training.job import TrainJob
from tests.training.interrupted import interrupt
from tests.training.small import (
    apart,
    distance,
    logged,
    run_small,
    settings,
    summary,
    trained_weights,
)

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
@pytest.mark.parametrize("seed", ["one", "two"])
def test_a_resumed_training_knows_the_best_probe_of_before(
    inputs: Path, tmp_path: Path, best: dict[str, Any], seed: str
) -> None:
    config = settings(best=best, checkpoint_every=2, record_steps=())
    runs = interrupt(inputs, tmp_path, config, seed)
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
