"""The rows of a comparison of preference trainings: settings of arms, figures of runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dynolab.data.rows import Row, Split
from dynolab.objectives.registry import RowObjectiveConfig
from dynolab.results.study import AlarmRing
from dynolab.training.alarm import AlarmConfig

Start = Literal["base", "sft", "extended", "extended_half"]
"""Model that preference training starts from.

`extended`: SFT on both answers of every pair, in twice the steps of plain SFT, so that each answer
is seen as often and with the same weight as the chosen one there. `extended_half`: the same in as
many steps as plain SFT, with half the weight per answer.
"""

Pairs = Literal["given", "resampled", "on_policy"]
"""Pairs that preference training learns from.

`given`: the data's. `resampled`: the data's chosen answers, and rejected ones sampled once from the
model that training starts from. `on_policy`: both answers sampled from the current policy, every
step or every few steps, and ranked by rewards (Guo et al., arXiv 2402.04792).
"""


SFT, EXTENDED, EXTENDED_HALF = "sft", "sft_extended", "sft_extended_half"
FROM_BASE, AFTER_SFT = "from-base", "dpo"
AFTER_EXTENDED, AFTER_EXTENDED_HALF = "extended", "extended-half"
"""DPO trainings by their start (`Start`)."""
RESAMPLED, ON_POLICY, IPO, ON_POLICY_IPO = "resampled", "on-policy", "ipo", "on-policy-ipo"
"""Trainings after SFT, by their pairs (`Pairs`) and their loss."""

TITLES = {
    SFT: "SFT",
    EXTENDED: "extended SFT",
    EXTENDED_HALF: "half-weight extended SFT",
    FROM_BASE: "DPO from the base model",
    AFTER_SFT: "DPO after SFT",
    AFTER_EXTENDED: "DPO after extended SFT",
    AFTER_EXTENDED_HALF: "DPO after half-weight extended SFT",
    RESAMPLED: "DPO against resampled answers",
    ON_POLICY: "on-policy DPO",
    IPO: "IPO after SFT",
    ON_POLICY_IPO: "on-policy IPO",
}
"""Titles of trainings on pages. Claims on extended SFT are about the one in which a chosen answer
weighs as much as in SFT; the half-weight one separates the effect of the weight."""


class ArmFacts(Row):
    """Settings of one arm of a comparison.

    `dropped` is the share of pairs that the ranking `filtered_by` left out, unless they were
    `named` (`id`) or drawn at random (`random`); `weighed` pairs are all there. `learning_rate`,
    `warmup_steps` and `updates_per_rollout` are None if the arm does not set its own.
    """

    objective: RowObjectiveConfig
    start: Start = "sft"
    pairs: Pairs = "given"
    filtered_by: str | None = None
    dropped: float | None = None
    named: tuple[str, ...] = ()
    random: int | None = None
    weighed: bool = False
    alarm: AlarmConfig | None = None
    learning_rate: float | None = None
    warmup_steps: int | None = None
    updates_per_rollout: int | None = None


class Divergence(Row):
    """How a training diverged: `divergence.json`. `step` counts the updates made before that."""

    step: int
    reason: str


class MarginPoint(Row):
    """Means over training pairs at one probe, in nats since the first.

    `margin`: Δ(log π(y⁺) − log π(y⁻)); `gap`: Δ(log π(y*) − log π(y⁺)); `chosen`: Δ log π(y⁺);
    `heldout`: the same of held-out pairs, if they were probed.
    """

    step: int
    margin: float
    gap: float
    chosen: float
    heldout: float | None = None


class RunFigures(Row):
    """Figures of one arm with one seed; empty for a diverged run.

    `left_out`: ids of the pairs that its filter left out.
    """

    figures: dict[str, float]
    counts: dict[str, int] = Field(
        {}, description="The pairs or prompts that a figure is the mean over."
    )
    left_out: tuple[str, ...] = ()
    path: tuple[MarginPoint, ...] = ()
    diverged: Divergence | None = None
    alarm: AlarmRing | None = None


class FollowedAnswer(Row):
    """A watched chosen answer that is followed from arm to arm.

    `changes`: by arm and in the order of the seeds, its Δ log π over the training in nats; None
    where the run diverged, or the seed does not watch this answer.
    """

    pair_id: str
    split: Split
    prompt: str
    changes: dict[str, tuple[float | None, ...]]


class ComparedArms(Row):
    """A comparison of preference trainings: `comparison.json`.

    `arms` are keyed by label; `baseline` is one of the labels; `runs` are keyed by label, in the
    order of `seeds`. `training` describes what all arms share, and all make as many `steps`;
    `judge` names the judge of answers. `follow`: ids of the pairs whose answers were to be
    `followed`; empty: those that fell most.
    """

    name: str
    arms: dict[str, ArmFacts]
    baseline: str
    seeds: tuple[int, ...]
    runs: dict[str, tuple[RunFigures, ...]]
    training: str = ""
    steps: int | None = None
    judge: str = "exact"
    follow: tuple[str, ...] = ()
    followed: tuple[FollowedAnswer, ...] = ()

    @property
    def others(self) -> list[str]:
        """All arms but the baseline."""
        return [arm for arm in self.arms if arm != self.baseline]
