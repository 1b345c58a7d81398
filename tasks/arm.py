"""Stage `arm`: a preference training of a comparison; a divergence is recorded, not raised."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from dynolab.data.rows import ProbeRow, read_rows, write_rows
from dynolab.errors import DIVERGED, ConfigError, Diverged, RankFailed
from dynolab.judges.exact import WORLD_REWARDS
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.registry import PAIR_OBJECTIVES, RowObjectiveConfig
from dynolab.results.arms import ArmFacts, Divergence, Pairs, Start
from dynolab.results.study import MetricsLine
from dynolab.rollouts.rewards import RewardConfig
from dynolab.training.alarm import AlarmConfig
from dynolab.training.config import GroupTrainConfig, TrainConfig
from tasks.filter import FilterConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.training import run_training

DIVERGENCE = "divergence.json"
WATCHED = ("chosen", "rejected")


class OnPolicyConfig(StageConfig):
    """How arms on the policy's own pairs draw and rank them, with `GroupTrainConfig`'s names."""

    rewards: tuple[RewardConfig, ...] = Field(
        WORLD_REWARDS,
        min_length=1,
        description="Their weighted sum ranks answers; default: the built-in world's exact judge.",
    )
    completions: int = Field(
        2, ge=2, description="Sampled to each prompt; the best and the worst make its pair."
    )
    temperature: float = Field(1.0, gt=0, description="Of the sampling.")
    max_new_tokens: int = Field(24, ge=1, description="Longest answer.")
    stop: tuple[str, ...] = Field((), description="Texts that end an answer.")
    sample_batch_size: int = Field(128, ge=1, description="Answers that grow side by side.")


class ArmConfig(StageConfig):
    """One way of preference training."""

    objective: RowObjectiveConfig = DPOConfig()
    start: Start = Field(
        "sft",
        description="Model that it starts from. extended: SFT on both answers of every pair, in "
        "twice the steps, so that each weighs as in plain SFT; extended_half: in as many steps, "
        "at half the weight.",
    )
    pairs: Pairs = Field(
        "given",
        description="The data's; resampled: with rejected answers sampled once from the start; "
        "on_policy: both answers sampled at every step, and ranked.",
    )
    filter: FilterConfig | None = Field(
        None, description="Leaves the worst pairs of an audit of the start out."
    )
    alarm: AlarmConfig | None = Field(None, description="Ends training where the gap has grown.")
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="In place of the shared one, for a loss whose push has another size.",
    )
    updates_per_rollout: int | None = Field(
        None,
        ge=1,
        description="With pairs: on_policy, optimizer steps between samplings (default: 1). The "
        "policy at a sampling is the reference of sppo and spin in these steps.",
    )

    @property
    def facts(self) -> ArmFacts:
        """What pages say of it."""
        return ArmFacts(
            objective=self.objective,
            start=self.start,
            pairs=self.pairs,
            filtered_by=self.filter and self.filter.by,
            dropped=self.filter and self.filter.drop,
            alarm=self.alarm,
            learning_rate=self.learning_rate,
            updates_per_rollout=self.updates_per_rollout,
        )

    def training(
        self, shared: TrainConfig, on_policy: OnPolicyConfig, seed: int
    ) -> TrainConfig | GroupTrainConfig:
        """The arm's training with one seed.

        **Raises** `ConfigError` for an objective that compares no answers, for a filter of pairs
        that are not the data's, and for rollouts of an arm that samples none.
        """
        if self.objective.name not in PAIR_OBJECTIVES:
            raise ConfigError(
                "objective",
                self.objective.name,
                f"compares no answers; choose one of {', '.join(sorted(PAIR_OBJECTIVES))}",
            )
        if self.filter is not None and self.pairs != "given":
            raise ConfigError(
                "filter",
                self.filter.by,
                f"ranks the data's pairs, and with pairs: {self.pairs} others are trained on; "
                "leave one out",
            )
        if self.updates_per_rollout is not None and self.pairs != "on_policy":
            raise ConfigError(
                "updates_per_rollout",
                self.updates_per_rollout,
                f"pairs: {self.pairs} samples no answers in training; set pairs: on_policy, or "
                "leave it out",
            )
        changes: dict[str, Any] = {"objective": self.objective.model_dump(), "seed": seed}
        if self.alarm is not None:
            changes["alarm"] = self.alarm.model_dump()
        kind: type[TrainConfig | GroupTrainConfig] = TrainConfig
        if self.pairs == "on_policy":
            kind = GroupTrainConfig
            changes |= on_policy.model_dump()
            changes["updates_per_rollout"] = self.updates_per_rollout or 1
        training = kind.model_validate(shared.model_dump() | changes)
        if self.learning_rate is None:
            return training
        optimizer = training.optimizer.model_copy(update={"learning_rate": self.learning_rate})
        return training.model_copy(update={"optimizer": optimizer})


def train_arm(work: Work[TrainConfig | GroupTrainConfig]) -> dict[str, float]:
    """Trains input `model` on the rows of input `data`, as a preference stage does; or on its own
    answers to those of input `prompts`.

    Of the kinds of answers those are watched that arms are compared by: the pair's own, and y*.

    Results: those of a training. Where it diverges, in a step or only in what a probe finds: what
    was logged and probed until then, no `model/`, and `divergence.json`; the batch that did it is
    among the stage's logs.

    **Raises** what any other failure of a training raises.
    """
    try:
        data = work.input_folder("data")
        own = isinstance(work.config, GroupTrainConfig)
        rows = work.input_folder("prompts") if own else data
        metrics = run_training(work, rows / "train.jsonl", _pairs_own(work, data))
        divergence = _lost(_logged(work))
    except (Diverged, RankFailed) as error:
        if not (work.logs / DIVERGED).exists():
            raise
        metrics = {}
        done = max((line.step for line in _logged(work)), default=0)
        divergence = Divergence(step=done, reason=str(error))
    if divergence is None:
        return metrics | {"diverged": 0.0}
    shutil.rmtree(work.output / "model", ignore_errors=True)
    (work.output / DIVERGENCE).write_text(divergence.model_dump_json(indent=1))
    work.tracker.log_artifact(work.output / DIVERGENCE, "report")
    work.step = divergence.step
    return metrics | {"diverged": 1.0}


def _pairs_own(work: Work[TrainConfig | GroupTrainConfig], data: Path) -> Path:
    """The watched rows without other kinds: reading those takes longer than training."""
    file = work.scratch / "probes.jsonl"
    rows = read_rows(data / "probes.jsonl", ProbeRow)
    write_rows(file, (row for row in rows if row.kind in WATCHED))
    return file


def _logged(work: Work[TrainConfig | GroupTrainConfig]) -> list[MetricsLine]:
    file = work.output / "metrics.jsonl"
    return list(read_rows(file, MetricsLine)) if file.exists() else []


def _lost(lines: Sequence[MetricsLine]) -> Divergence | None:
    """Where a probe found likelihoods that are no numbers, though every step's loss was one."""
    for line in lines:
        for name, value in line.metrics.items():
            if name.startswith("probe/") and not math.isfinite(value):
                return Divergence(step=line.step, reason=f"{name} = {value} at a probe")
    return None


ARM = Stage("arm", 1, train_arm)
