"""Every objective's training resumes to the bit and does not depend on its micro-batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynolab.objectives.registry import AnyConfig, names_of
from dynolab.training.config import GroupTrainConfig, TrainConfig
from dynolab.training.job import TrainJob
from tests.training.every_objective import ON_GROUPS, ON_ROWS, small_training
from tests.training.interrupted import Died, Mortal, interrupt
from tests.training.small import (
    apart,
    group_settings,
    logged,
    make_job,
    run_small,
    settings,
    state,
)

NAMES = [*ON_ROWS, *ON_GROUPS]
TIMED = {"train/examples_per_s", "probe/seconds"}


def untimed(job: TrainJob) -> list[tuple[int, dict[str, float]]]:
    """What was logged, step by step, but for times."""
    return [
        (line.step, {name: x for name, x in line.metrics.items() if name not in TIMED})
        for line in logged(job)
    ]


def test_no_objective_is_forgotten() -> None:
    trained = {objective["name"] for objective in [*ON_ROWS.values(), *ON_GROUPS.values()]}
    assert trained == {*names_of(AnyConfig)}


MOSTLY_EQUAL = [{"name": "tests.training.rewards.same_for_most"}]
OTHERWISE: dict[str, TrainConfig | GroupTrainConfig] = {
    **{
        name: small_training(
            "dpo", optimizer={"name": name, "learning_rate": 1e-3, "momentum": 0.9}
        )
        for name in ("sgd", "rmsprop")
    },
    "drawn": small_training("grpo", rewards=[{"name": "tests.training.rewards.drawn"}]),
    "resampled": small_training("grpo", rewards=MOSTLY_EQUAL, resample=3),
}


@pytest.mark.parametrize("name", [*NAMES, *OTHERWISE])
def test_a_training_that_died_anywhere_ends_with_the_same_bits(
    inputs: Path, tmp_path: Path, name: str
) -> None:
    config = OTHERWISE[name] if name in OTHERWISE else small_training(name)
    runs = interrupt(inputs, tmp_path, config, seed=name)
    assert runs.identical
    assert untimed(runs.whole) == untimed(runs.resumed)
    if isinstance(config, TrainConfig):
        whole, resumed = (job.output / "probes.jsonl" for job in (runs.whole, runs.resumed))
        assert whole.read_text() == resumed.read_text()


def test_other_prompts_take_the_place_of_those_that_teach_nothing(
    inputs: Path, tmp_path: Path
) -> None:
    """`train/groups_equal` counts what is left; rollouts report the prompts that were drawn."""
    settled: dict[int, list[dict[str, float]]] = {}
    for times in (0, 6):
        config = small_training("grpo", rewards=MOSTLY_EQUAL, resample=times, batch_size=2)
        job = run_small(inputs, tmp_path / str(times), config)
        settled[times] = [values for _, values in untimed(job)]
    plain, filled = (
        sum(one.get("train/groups_equal", 0.0) for one in settled[times]) for times in (0, 6)
    )
    assert filled < plain
    first = {name for name in settled[0][0] if name.startswith("rollout/")}
    assert {n: settled[0][0][n] for n in first} == {n: settled[6][0][n] for n in first}


LORA = {"lora": {"rank": 2, "alpha": 8}, "record_steps": []}
WITHIN: dict[str, TrainConfig | GroupTrainConfig] = {
    "adapters on rows": settings(**LORA),
    "adapters on groups": group_settings(**LORA),
    "adapters on online pairs": group_settings(**LORA, objective={"name": "dpo"}),
    "self-play": group_settings(objective={"name": "spin"}, completions=1, record_steps=[0, 2]),
}


@pytest.mark.parametrize("name", WITHIN)
def test_so_does_one_that_goes_on_within_a_rollout_of_two_steps(
    inputs: Path, tmp_path: Path, name: str
) -> None:
    whole = run_small(inputs, tmp_path / "whole", WITHIN[name])
    resumed = run_small(inputs, tmp_path / "resumed", WITHIN[name], state(whole, 3))
    assert apart(whole, resumed) == 0.0


def test_a_state_within_a_rollout_holds_its_steps_to_come(inputs: Path, tmp_path: Path) -> None:
    job = make_job(inputs, tmp_path, small_training("grpo"))
    with pytest.raises(Died):
        Mortal(job, last=8).run()  # two to a step: in the last micro-batch of the fourth
    kept = {
        folder.name: sorted(file.name for file in folder.glob("source/*"))
        for folder in job.resume_out.iterdir()
    }
    assert kept == {
        "step-00000001": ["update-1.jsonl", "update-2.jsonl"],
        "step-00000002": ["update-2.jsonl"],
        "step-00000003": [],
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_micro_batch_does_not_matter(inputs: Path, tmp_path: Path, name: str) -> None:
    # SGD: Adam would divide rounding by rounding where a gradient is almost zero.
    plain = {"optimizer": {"name": "sgd", "learning_rate": 0.1}, "batch_size": 4}
    plain |= {"checkpoint_every": 0, "probe_every": 0, "record_steps": []}
    alone, together = (
        run_small(
            inputs, tmp_path / str(size), small_training(name, micro_batch_size=size, **plain)
        )
        for size in (1, 4)
    )
    # Doses that are designed repeat to the rounding of differences of log-probabilities.
    bound = 1e-5 if "designed" in name else 1e-6
    assert apart(alone, together) < bound
