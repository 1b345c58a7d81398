"""The result is the model of the best probe, where that is asked for, resumed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from dynolab.data.rows import read_rows, read_value
from dynolab.errors import ConfigError
from dynolab.results.study import MetricsLine, TrainingSummary
from dynolab.training.config import TrainConfig
from dynolab.training.job import TrainJob
from dynolab.training.loop import train
from models.language import load_language_model, load_tokenizer
from tests.training.interrupted import interrupt
from tests.training.small import distance, make_files, make_job, settings, trained_weights

REJECTED = "probe/rejected/logp"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_files(folder)
    return folder


def run(inputs: Path, folder: Path, **changes: Any) -> TrainJob:
    job = make_job(inputs, folder, settings(record_steps=(), **changes))
    train(job, load_language_model(job.model), load_tokenizer(job.model))
    return job


def summary(job: TrainJob) -> TrainingSummary:
    return read_value(job.output / "summary.json", TrainingSummary)


def probed(job: TrainJob, metric: str) -> dict[int, float]:
    lines = read_rows(job.output / "metrics.jsonl", MetricsLine)
    return {line.step: line.metrics[metric] for line in lines if metric in line.metrics}


@pytest.mark.parametrize("largest", [True, False])
def test_the_result_is_the_model_of_the_best_probe(
    inputs: Path, tmp_path: Path, largest: bool
) -> None:
    job = run(inputs, tmp_path / "best", best={"metric": REJECTED, "largest": largest})
    found = probed(job, REJECTED)
    best = (max if largest else min)(found, key=lambda step: found[step])
    told = summary(job).best
    assert told is not None
    assert (told.step, told.metric, told.value) == (best, REJECTED, found[best])
    assert summary(job).steps == 6
    assert not (job.output / "best").exists()
    if best == 0:
        expected = load_file(job.model / "model.safetensors")
    else:
        expected = trained_weights(run(inputs, tmp_path / "short", steps=best))
    assert distance(trained_weights(job), expected) == 0.0


def test_without_it_nothing_changes(inputs: Path, tmp_path: Path) -> None:
    plain = run(inputs, tmp_path / "plain")
    assert summary(plain).best is None
    assert "best" not in (plain.output / "summary.json").read_text()
    assert "best" not in settings().model_dump(mode="json")


@pytest.mark.parametrize("best", [{"metric": REJECTED}, {"metric": REJECTED, "largest": False}])
@pytest.mark.parametrize("seed", ["one", "two"])
def test_a_resumed_training_knows_the_best_probe_of_before(
    inputs: Path, tmp_path: Path, best: dict[str, Any], seed: str
) -> None:
    config = settings(best=best, checkpoint_every=2, record_steps=())
    done = interrupt(inputs, tmp_path, config, seed)
    assert done.resumed_from is not None
    assert done.identical
    assert summary(done.whole) == summary(done.resumed)


def test_of_adapters_the_merged_model_is_the_best(inputs: Path, tmp_path: Path) -> None:
    lora = {"rank": 2}
    whole = run(inputs, tmp_path / "whole", lora=lora, best={"metric": REJECTED, "largest": False})
    told = summary(whole).best
    assert told is not None and told.step > 0
    short = run(inputs, tmp_path / "short", lora=lora, steps=told.step)
    assert distance(trained_weights(whole), trained_weights(short)) == 0.0


def test_a_metric_that_no_probe_measures_is_named(inputs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"best\.metric = 'train/loss'.*probe/chosen/logp"):
        run(inputs, tmp_path, best={"metric": "train/loss"})


def test_without_probes_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="probe_every"):
        TrainConfig.model_validate({"best": {}})
