"""Stages `arm` and `mitigation-page`: a preference training of a comparison, and what arms did.

A training that diverges is recorded, not raised.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from dynolab.comparisons.pair_arms import chosen_changes, followed_answers
from dynolab.data.rows import ProbeRow, read_rows, write_rows
from dynolab.errors import DIVERGED, ConfigError, Diverged, RankFailed
from dynolab.judges.contests import WORLD_REWARDS
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.registry import (
    PAIR_OBJECTIVES,
    RowObjectiveConfig,
    build_objective,
    changed_settings,
)
from dynolab.results.arms import ArmFacts, ComparedArms, Divergence, Pairs, Start
from dynolab.results.study import MetricsLine, rows
from dynolab.rollouts.rewards import RewardConfig
from dynolab.training.alarm import AlarmConfig
from dynolab.training.config import GroupTrainConfig, TrainConfig
from tasks.audit import FilterConfig
from tasks.pages import read_run
from tasks.runtime.stage import Stage
from tasks.runtime.system.invocation import invocation
from tasks.runtime.work import StageConfig, Work
from tasks.shared.page_helpers import PageConfig, facts_of, page_shown
from tasks.training import estimate, run_training

DIVERGENCE = "divergence.json"
WATCHED = ("chosen", "rejected")


class OnPolicyConfig(StageConfig):
    """How on-policy arms sample and rank their pairs; fields are named as in `GroupTrainConfig`."""

    rewards: tuple[RewardConfig, ...] = Field(
        WORLD_REWARDS,
        min_length=1,
        description="Their weighted sum ranks answers; default: the built-in world's exact judge.",
    )
    completions: int = Field(
        2, ge=2, description="Sampled to each prompt; the best and the worst make its pair."
    )
    temperature: float = Field(1.0, gt=0, description="Sampling temperature.")
    max_new_tokens: int = Field(24, ge=1, description="Longest answer, in tokens.")
    stop: tuple[str, ...] = Field((), description="Texts that end an answer.")
    sample_batch_size: int = Field(128, ge=1, description="Answers sampled in one batch.")


class ArmConfig(StageConfig):
    """One preference training of the comparison."""

    objective: RowObjectiveConfig = DPOConfig()
    start: Start = Field(
        "sft",
        description="Model that it starts from. extended: SFT on both answers of every pair, in "
        "twice the steps, so that each answer has its weight in plain SFT; extended_half: in as "
        "many steps, each answer at half the weight.",
    )
    pairs: Pairs = Field(
        "given",
        description="given: the data's pairs; resampled: their rejected answers are sampled once "
        "from the start; on_policy: both answers are sampled at every step, and ranked.",
    )
    filter: FilterConfig | None = Field(
        None, description="Leaves out the pairs that an audit of the start ranks worst."
    )
    alarm: AlarmConfig | None = Field(None, description="Ends training when the gap has grown.")
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="In place of the shared one, for a loss with gradients of another size.",
    )
    warmup_steps: int | None = Field(
        None,
        ge=0,
        exclude_if=lambda steps: steps is None,
        description="In place of the shared ones: steps of linear learning-rate warm-up.",
    )
    updates_per_rollout: int | None = Field(
        None,
        ge=1,
        description="With pairs: on_policy, optimizer steps between samplings (default: 1). The "
        "policy at a sampling is the reference of sppo and spin in these steps.",
    )

    @property
    def facts(self) -> ArmFacts:
        """The arm's settings as pages show them."""
        return ArmFacts(
            objective=self.objective,
            start=self.start,
            pairs=self.pairs,
            filtered_by=self.filter and self.filter.chosen_by,
            dropped=self.filter and self.filter.drop,
            named=self.filter.pairs if self.filter else (),
            random=self.filter and self.filter.random,
            weighed=self.filter is not None and self.filter.weigh,
            alarm=self.alarm,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            updates_per_rollout=self.updates_per_rollout,
        )

    def training(
        self, shared: TrainConfig, on_policy: OnPolicyConfig, seed: int
    ) -> TrainConfig | GroupTrainConfig:
        """The arm's training with one seed.

        **Raises** `ConfigError` for an objective that is not on pairs, for a filter without
        `pairs: given`, and for `updates_per_rollout` without `pairs: on_policy`.
        """
        if self.objective.name not in PAIR_OBJECTIVES:
            raise ConfigError(
                "objective",
                self.objective.name,
                f"is not a loss on pairs; choose one of {', '.join(sorted(PAIR_OBJECTIVES))}",
            )
        build_objective(self.objective)  # a loss of one's own may not be one
        if self.filter is not None and self.pairs != "given":
            raise ConfigError(
                "filter",
                self.filter.by,
                f"ranks the data's pairs, but pairs: {self.pairs} trains on others; leave one of "
                "the two out",
            )
        if self.updates_per_rollout is not None and self.pairs != "on_policy":
            raise ConfigError(
                "updates_per_rollout",
                self.updates_per_rollout,
                f"pairs: {self.pairs} samples no answers in training; set pairs: on_policy, or "
                "leave it out",
            )
        changes: dict[str, Any] = {"objective": self.objective.model_dump(), "seed": seed}
        if self.warmup_steps is not None:
            changes["warmup_steps"] = self.warmup_steps
        if self.alarm is not None:
            changes["alarm"] = self.alarm.model_dump()
        kind: type[TrainConfig | GroupTrainConfig] = TrainConfig
        if self.pairs == "on_policy":
            kind = GroupTrainConfig
            changes |= {
                **on_policy.model_dump(),
                "updates_per_rollout": self.updates_per_rollout or 1,
            }
        training = kind.model_validate(shared.model_dump() | changes)
        if self.learning_rate is None:
            return training
        optimizer = training.optimizer.model_copy(update={"learning_rate": self.learning_rate})
        return training.model_copy(update={"optimizer": optimizer})


def train_arm(work: Work[TrainConfig | GroupTrainConfig]) -> dict[str, float]:
    """Trains input `model` on the rows of input `data`, as stage `preference` does, or on its own
    answers to the prompts of input `prompts`.

    Watches the kinds of answers that arms are compared by: chosen, rejected, and y*.

    Results: those of a training. If a step or a probe is not finite, the training has diverged: the
    result then holds what was logged until then and `divergence.json`, but no `model/`; the stage's
    logs hold the batch that diverged.

    **Raises** every other failure of the training.
    """
    try:
        data = work.input_folder("data")
        rows = work.input_folder("prompts") if isinstance(work.config, GroupTrainConfig) else data
        metrics = run_training(work, rows / "train.jsonl", _watched_rows(work, data))
        divergence = _nonfinite_probe(_logged_lines(work))
    except (Diverged, RankFailed) as error:
        if not (work.logs / DIVERGED).exists():
            raise
        metrics = {}
        last_step = max((line.step for line in _logged_lines(work)), default=0)
        divergence = Divergence(step=last_step, reason=str(error))
    if divergence is None:
        return metrics | {"diverged": 0.0}
    shutil.rmtree(work.output / "model", ignore_errors=True)
    (work.output / DIVERGENCE).write_text(divergence.model_dump_json(indent=1))
    work.tracker.log_artifact(work.output / DIVERGENCE, "report")
    work.step = divergence.step
    return metrics | {"diverged": 1.0}


def _watched_rows(work: Work[TrainConfig | GroupTrainConfig], data: Path) -> Path:
    """A probe file with the `WATCHED` kinds alone: scoring all would take longer than training."""
    file = work.scratch / "probes.jsonl"
    rows = read_rows(data / "probes.jsonl", ProbeRow)
    write_rows(file, (row for row in rows if row.kind in WATCHED))
    return file


def _logged_lines(work: Work[TrainConfig | GroupTrainConfig]) -> list[MetricsLine]:
    file = work.output / "metrics.jsonl"
    return list(read_rows(file, MetricsLine)) if file.exists() else []


def _nonfinite_probe(lines: Sequence[MetricsLine]) -> Divergence | None:
    """The first probe with a non-finite log-likelihood; every step's loss may still be finite."""
    for line in lines:
        for name, value in line.metrics.items():
            if name.startswith("probe/") and not math.isfinite(value):
                return Divergence(step=line.step, reason=f"{name} = {value} at a probe")
    return None


ARM = Stage("arm", 4, train_arm, estimate=estimate)


class MitigationPageConfig(PageConfig):
    """Facts about the comparison that the page shows."""

    seeds: tuple[int, ...]
    arms: dict[str, ArmConfig]
    baseline: str
    training: TrainConfig
    on_policy: OnPolicyConfig = OnPolicyConfig()
    judge: str
    follow: tuple[str, ...] = ()


def mitigation_page(work: Work[MitigationPageConfig]) -> dict[str, float]:
    """Reads for every arm and seed its training, its filter's result, its sampled answers and the
    judge's verdicts against the baseline; and for every seed the watched rows.

    Results: `mitigation.html`, `summary.json`, `comparison.json` and `figures/`; all go to MLflow
    as well. Returns each arm's figures as means over seeds.
    """
    from dynolab.report.comparison.mitigation import write_mitigation_page

    config, training = work.config, work.config.training
    with page_shown(work):
        runs = {arm: [read_run(work, arm, seed) for seed in config.seeds] for arm in config.arms}
        compared = ComparedArms(
            name=config.name,
            arms={label: arm.facts for label, arm in config.arms.items()},
            baseline=config.baseline,
            seeds=config.seeds,
            runs={arm: tuple(run.row() for run in group) for arm, group in runs.items()},
            training=f"{training.steps} steps of {training.batch_size} pairs with "
            f"{training.optimizer.name}, learning rate {training.optimizer.learning_rate:g}.",
            steps=training.steps,
            judge=config.judge,
            follow=config.follow,
            followed=followed_answers(
                {arm: [chosen_changes(run.probes) for run in group] for arm, group in runs.items()},
                [
                    rows(work.input_folder(f"data-{seed}"), "probes.jsonl", ProbeRow)
                    for seed in config.seeds
                ],
                config.baseline,
                config.follow,
            ),
        )
        return write_mitigation_page(
            compared,
            work.output,
            settings=config.settings,
            stages=facts_of(work.inputs),
            commands={
                label: study_command(label, arm.facts, training.steps)
                for label, arm in config.arms.items()
            },
        )


def study_command(label: str, arm: ArmFacts, steps: int) -> str:
    """The command that trains a study as a run of the comparison was trained; empty where a study
    has no setting for that: another start than SFT's or the base model, or pairs that are sampled.

    The study has a name of its own, so that its page replaces no other.
    """
    if arm.start in ("extended", "extended_half") or arm.pairs != "given":
        return ""
    left_out: dict[str, Any] = {"by": arm.filtered_by, "drop": arm.dropped}
    if arm.weighed:
        left_out = {"by": arm.filtered_by, "weigh": True}
    if arm.named:
        left_out = {"pairs": list(arm.named)}
    elif arm.random is not None:
        left_out = {"random": arm.random}
    settings = {
        "name": f"trained-as-{label}",
        "preference.objective": changed_settings(arm.objective),
        "preference.steps": steps,
        "preference.optimizer.learning_rate": arm.learning_rate,
        "preference.warmup_steps": arm.warmup_steps,
        "preference.alarm": arm.alarm and arm.alarm.model_dump(exclude_defaults=True),
        "preference_filter": left_out if arm.filtered_by else None,
    }
    options = (
        shlex.quote(f"{name}={json.dumps(value)}")
        for name, value in settings.items()
        if value is not None
    )
    without_sft = ["--set sft=null"] if arm.start == "base" else []
    return " ".join(
        [f"{invocation()} study FILE", *without_sft, *(f"--set {option}" for option in options)]
    )


MITIGATION_PAGE = Stage("mitigation-page", 30, mitigation_page)
