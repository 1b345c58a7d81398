"""The contrasts of a study: its preference training where squeezing should not show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dynolab.rollouts.sample import SampleConfig
from dynolab.training.config import TrainConfig
from flows.sources import base_step
from tasks.data import DATA
from tasks.resampled import RESAMPLED
from tasks.runtime.pipeline import Step
from tasks.training import PREFERENCE, SFT

if TYPE_CHECKING:
    from flows.study import StudyParameters

Contrast = Literal["resampled", "flat_world"]


def contrast_steps(contrast: Contrast, parameters: StudyParameters) -> list[Step]:
    """The stages of a contrast; the last one trains."""
    return _resampled(parameters) if contrast == "resampled" else _flat_world(parameters)


def _resampled(parameters: StudyParameters) -> list[Step]:
    """Preference training on rejected answers that are sampled once from where it starts."""
    sampling = SampleConfig(seed=parameters.seed)
    return [
        Step("resampled-data", RESAMPLED, sampling, {"data": "data", "model": "sft"}),
        Step(
            "resampled",
            PREFERENCE,
            _unrecorded(parameters.preference),
            {"data": "resampled-data", "model": "sft"},
        ),
    ]


def _flat_world(parameters: StudyParameters) -> list[Step]:
    """The whole way through a world whose answers prefer no style: nothing is there to squeeze."""
    flat = parameters.data.world.model_copy(update={"zipf": 0.0})
    data = parameters.data.model_copy(update={"world": flat})
    return [
        Step("flat-data", DATA, data),
        base_step("flat-base", parameters.base, data="flat-data"),
        Step(
            "flat-sft",
            SFT,
            _unrecorded(parameters.sft),
            {"data": "flat-data", "model": "flat-base"},
        ),
        Step(
            "flat-world",
            PREFERENCE,
            _unrecorded(parameters.preference),
            {"data": "flat-data", "model": "flat-sft"},
        ),
    ]


def _unrecorded(config: TrainConfig) -> TrainConfig:
    return config.model_copy(update={"record_steps": ()})
