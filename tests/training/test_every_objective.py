"""Every objective's training resumes to the bit and does not depend on its micro-batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from dynolab.objectives.registry import AnyConfig, RowConfig
from dynolab.rollouts.rewards import ALLOWED
from dynolab.training.job import TrainJob
from dynolab.training.loop import train
from models.language import load_language_model, load_tokenizer
from tests.training.every_objective import ON_GROUPS, ON_ROWS, small_training
from tests.training.interrupted import Died, Mortal, interrupt
from tests.training.small import distance, make_files, make_job, trained_weights

NAMES = [*ON_ROWS, *ON_GROUPS]
TIMED = {"train/examples_per_s", "probe/seconds"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_files(folder)
    return folder


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "tests.training.rewards")


def metrics(job: TrainJob) -> list[tuple[int, dict[str, float]]]:
    """What was logged, step by step, but for times."""
    lines = map(json.loads, (job.output / "metrics.jsonl").read_text().splitlines())
    return [
        (line["step"], {name: x for name, x in line["metrics"].items() if name not in TIMED})
        for line in lines
    ]


def test_no_objective_is_forgotten() -> None:
    def names(config: Any) -> set[str]:
        return {one.model_fields["name"].default for one in get_args(config)}

    assert {one["name"] for one in ON_ROWS.values()} == names(RowConfig)
    assert {one["name"] for one in (*ON_ROWS.values(), *ON_GROUPS.values())} == names(AnyConfig)


@pytest.mark.parametrize("name", NAMES)
def test_a_training_that_died_anywhere_ends_with_the_same_bits(
    inputs: Path, tmp_path: Path, name: str
) -> None:
    runs = interrupt(inputs, tmp_path, small_training(name), seed=name)
    assert runs.resumed_from is not None
    assert runs.identical
    assert metrics(runs.whole) == metrics(runs.resumed)
    if name in ON_ROWS:
        one, other = (job.output / "probes.jsonl" for job in (runs.whole, runs.resumed))
        assert one.read_text() == other.read_text()


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop"])
def test_so_does_one_with_another_optimizer(inputs: Path, tmp_path: Path, optimizer: str) -> None:
    changes = {"optimizer": {"name": optimizer, "learning_rate": 1e-3, "momentum": 0.9}}
    runs = interrupt(inputs, tmp_path, small_training("dpo", **changes), optimizer)
    assert runs.resumed_from is not None
    assert runs.identical


@pytest.mark.parametrize("generator", ["python", "numpy", "torch"])
def test_so_does_one_whose_rewards_draw_random_numbers(
    inputs: Path, tmp_path: Path, generator: str
) -> None:
    changes = {"rewards": [{"name": f"tests.training.rewards.drawn_by_{generator}"}]}
    runs = interrupt(inputs, tmp_path, small_training("grpo", **changes), generator)
    assert runs.resumed_from is not None
    assert runs.identical
    assert metrics(runs.whole) == metrics(runs.resumed)


def test_a_state_within_a_rollout_holds_its_steps_to_come(inputs: Path, tmp_path: Path) -> None:
    job = make_job(inputs, tmp_path, small_training("grpo"))
    with pytest.raises(Died):
        Mortal(job, last=8).run()  # two to a step: in the last micro-batch of the fourth
    kept = {
        state.name: sorted(file.name for file in state.glob("source/*"))
        for state in job.resume_out.iterdir()
    }
    assert kept == {
        "step-00000001": ["update-1.jsonl", "update-2.jsonl"],
        "step-00000002": ["update-2.jsonl"],
        "step-00000003": [],
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_micro_batch_does_not_matter(inputs: Path, tmp_path: Path, name: str) -> None:
    # SGD: Adam would divide rounding by rounding where a gradient is almost zero.
    sgd = {"optimizer": {"name": "sgd", "learning_rate": 0.1}, "checkpoint_every": 0}
    weights = []
    for size in (1, small_training(name).batch_size):
        config = small_training(name, micro_batch_size=size, **sgd)
        job = make_job(inputs, tmp_path / str(size), config)
        train(job, load_language_model(job.model), load_tokenizer(job.model))
        weights.append(trained_weights(job))
    assert distance(*weights) < 1e-6
