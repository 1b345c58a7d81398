"""The rows of a comparison of preference trainings: what an arm is, how a run ended."""

from __future__ import annotations

from typing import Literal

from dynolab.data.rows import Row
from dynolab.objectives.registry import RowObjectiveConfig
from dynolab.results.study import AlarmRing
from dynolab.training.alarm import AlarmConfig

Start = Literal["base", "sft", "extended", "extended_half"]
"""Model that preference training starts from.

`extended`: SFT on both answers of every pair, each as often and with the weight that the chosen
one has in plain SFT, which takes twice the steps. `extended_half`: in as many steps as plain SFT,
in which every answer has half the weight.
"""

Pairs = Literal["given", "resampled", "on_policy"]
"""Pairs that preference training learns from.

`given`: the data's. `resampled`: the data's chosen answers, and rejected ones sampled once from the
model that training starts from. `on_policy`: both answers sampled from the policy as it is, at
every step or every few of them, and ranked by rewards (Guo et al., arXiv 2402.04792).
"""


class ArmFacts(Row):
    """What an arm of a comparison is.

    `dropped` is the share of pairs that the ranking `filtered_by` left out. `learning_rate` and
    `updates_per_rollout` are its own where it has them.
    """

    objective: RowObjectiveConfig
    start: Start = "sft"
    pairs: Pairs = "given"
    filtered_by: str | None = None
    dropped: float | None = None
    alarm: AlarmConfig | None = None
    learning_rate: float | None = None
    updates_per_rollout: int | None = None


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
