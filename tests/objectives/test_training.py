"""Every objective on pairs trains as it is, and its recorded step replays from its closed form."""

from __future__ import annotations

import pytest

from dynolab.forces import PolicyFunction, replay_error, rounding_floor, split_step
from dynolab.training.config import TrainConfig
from tests.forces.small_models import neox, pairs, train_steps, with_reference

OBJECTIVES = [
    {"name": "sft"},
    {"name": "sft_extended"},
    {"name": "dpo", "label_smoothing": 0.1},
    {"name": "dpo", "negative_dose": 0.3},
    {"name": "robust_dpo"},
    {"name": "ipo"},
    {"name": "ipo", "normalise": "mean"},
    {"name": "slic", "margin": 5.0},
    {"name": "hinge"},
    {"name": "simpo"},
    {"name": "sppo", "beta": 0.05},
]


def label(objective: dict[str, object]) -> str:
    return "-".join(str(value) for value in objective.values())


@pytest.mark.parametrize("objective", OBJECTIVES, ids=label)
def test_a_real_step_is_the_sum_of_its_sides(objective):
    model = neox()
    config = TrainConfig.model_validate(
        {
            "objective": objective,
            "engine": {"kind": "plain", "ranks": 1},
            "optimizer": {"name": "sgd", "learning_rate": 1e-2, "momentum": 0.5},
        }
    )
    made = train_steps(model, config, with_reference(model, pairs(3)), steps=2)
    record = made.records[-1]
    split = split_step(record, PolicyFunction(made.model))
    assert replay_error(split, record) < 1e-5 + 2 * rounding_floor(record)
