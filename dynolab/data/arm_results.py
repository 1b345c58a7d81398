"""The rows of a comparison of preference trainings: what an arm is, how a run ended."""

from __future__ import annotations

from typing import Literal

from dynolab.data.results import AlarmRing
from dynolab.data.rows import Row
from dynolab.objectives.registry import RowObjectiveConfig
from dynolab.squeezing.alarm import AlarmConfig

Start = Literal["base", "sft", "extended"]
"""Model that preference training starts from; extended: SFT on both answers of a pair."""


class ArmFacts(Row):
    """What an arm of a comparison is.

    `rejected`: the data's rejected answers, or the start's own samples. `dropped` is the share of
    pairs that the ranking `filtered_by` left out. `learning_rate` is its own where it has one.
    """

    objective: RowObjectiveConfig
    start: Start = "sft"
    rejected: Literal["given", "sampled"] = "given"
    filtered_by: str | None = None
    dropped: float | None = None
    alarm: AlarmConfig | None = None
    learning_rate: float | None = None


class Divergence(Row):
    """How a training diverged: `divergence.json`. `step` counts the updates made before."""

    step: int
    reason: str


class RunFigures(Row):
    """One arm with one seed in a few numbers; of a diverged run there are none."""

    figures: dict[str, float]
    diverged: Divergence | None = None
    alarm: AlarmRing | None = None


class ComparedArms(Row):
    """A comparison of preference trainings: `comparison.json`.

    `arms` by label; `baseline` is one of the labels; `runs` of every arm, in the order of `seeds`.
    `training` tells of what all arms share; `judge` is the name of the one who compared answers.
    """

    name: str
    arms: dict[str, ArmFacts]
    baseline: str
    seeds: tuple[int, ...]
    runs: dict[str, tuple[RunFigures, ...]]
    training: str = ""
    judge: str = "exact"

    @property
    def others(self) -> list[str]:
        """All arms but the baseline."""
        return [arm for arm in self.arms if arm != self.baseline]
