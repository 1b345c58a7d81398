"""Stage `mitigation-page`: the page that compares remedies against squeezing."""

from __future__ import annotations

import json
import shlex
from typing import Any

from dynolab.comparisons.followed import chosen_changes, followed_answers
from dynolab.objectives.registry import changed_settings
from dynolab.results.arms import ArmFacts, ComparedArms
from dynolab.training.config import TrainConfig
from tasks.arm import ArmConfig, OnPolicyConfig
from tasks.runtime.stage import Stage
from tasks.runtime.system.invocation import invocation
from tasks.runtime.work import Work
from tasks.shared.page_helpers import PageConfig, send_page, stage_facts
from tasks.shared.pair_inputs import data_of, read_run


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
    from dynolab.report.inputs.study import read_watched

    config = work.config
    with work.shown():
        runs = {arm: [read_run(work, arm, seed) for seed in config.seeds] for arm in config.arms}
        compared = ComparedArms(
            name=config.name,
            arms={label: arm.facts for label, arm in config.arms.items()},
            baseline=config.baseline,
            seeds=config.seeds,
            runs={arm: tuple(run.row() for run in own) for arm, own in runs.items()},
            training=_describe_training(config),
            steps=config.training.steps,
            judge=config.judge,
            follow=config.follow,
            followed=followed_answers(
                {arm: [chosen_changes(run.probes) for run in own] for arm, own in runs.items()},
                [read_watched(work.input_folder(data_of(seed))) for seed in config.seeds],
                config.baseline,
                config.follow,
            ),
        )
        metrics = write_mitigation_page(
            compared,
            work.output,
            settings=config.settings,
            stages=stage_facts(work),
            commands={
                label: study_command(label, arm.facts, config.training.steps)
                for label, arm in config.arms.items()
            },
        )
    send_page(work)
    return metrics


def study_command(label: str, arm: ArmFacts, steps: int) -> str:
    """The command that trains a study as a run of the comparison was trained.

    The study has a name of its own, so that its page replaces no other.
    """
    settings: dict[str, Any] = {
        "name": f"trained-as-{label}",
        "preference.objective": changed_settings(arm.objective),
        "preference.steps": steps,
    }
    if arm.warmup_steps is not None:
        settings["preference.warmup_steps"] = arm.warmup_steps
    if arm.filtered_by == "id":
        settings["preference_filter"] = {"pairs": list(arm.named)}
    elif arm.filtered_by is not None:
        settings["preference_filter"] = {"by": arm.filtered_by, "drop": arm.dropped}
    options = (shlex.quote(f"{name}={json.dumps(value)}") for name, value in settings.items())
    return " ".join([f"{invocation()} study FILE", *(f"--set {option}" for option in options)])


def _describe_training(config: MitigationPageConfig) -> str:
    """Describes the training that all arms share, and how on-policy arms make their pairs."""
    training, on_policy = config.training, config.on_policy
    optimizer = training.optimizer
    shared = (
        f"All arms make {training.steps} steps of {training.batch_size} pairs with "
        f"{optimizer.name}, learning rate {optimizer.learning_rate:g}."
    )
    if not any(arm.pairs == "on_policy" for arm in config.arms.values()):
        return shared
    ranking = " + ".join(f"{reward.weight:g} {reward.name}" for reward in on_policy.rewards)
    return (
        f"{shared} On-policy arms sample {on_policy.completions} answers to each of a step's "
        f"prompts, ranked by {ranking}; prompts whose answers rank alike are left out."
    )


MITIGATION_PAGE = Stage("mitigation-page", 29, mitigation_page)
