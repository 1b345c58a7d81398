"""Stage `mitigation-page`: the page that compares remedies against squeezing."""

from __future__ import annotations

import json
import shlex

from dynolab.comparisons.pair_arms import chosen_changes, followed_answers
from dynolab.data.rows import ProbeRow
from dynolab.objectives.registry import changed_settings
from dynolab.results.arms import ArmFacts, ComparedArms
from dynolab.results.study import rows
from dynolab.training.config import TrainConfig
from tasks.arm import ArmConfig, OnPolicyConfig
from tasks.pages import read_run
from tasks.runtime.stage import Stage
from tasks.runtime.system.invocation import invocation
from tasks.runtime.work import Work
from tasks.shared.page_helpers import PageConfig, page_shown, stage_facts


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
            runs={arm: tuple(run.row() for run in own) for arm, own in runs.items()},
            training=f"{training.steps} steps of {training.batch_size} pairs with "
            f"{training.optimizer.name}, learning rate {training.optimizer.learning_rate:g}.",
            steps=training.steps,
            judge=config.judge,
            follow=config.follow,
            followed=followed_answers(
                {arm: [chosen_changes(run.probes) for run in own] for arm, own in runs.items()},
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
            stages=stage_facts(work),
            commands={
                label: study_command(label, arm.facts, training.steps)
                for label, arm in config.arms.items()
            },
        )


def study_command(label: str, arm: ArmFacts, steps: int) -> str:
    """The command that trains a study as a run of the comparison was trained.

    The study has a name of its own, so that its page replaces no other.
    """
    by_rank = {"by": arm.filtered_by, "drop": arm.dropped}
    left_out = {"pairs": list(arm.named)} if arm.filtered_by == "id" else by_rank
    settings = {
        "name": f"trained-as-{label}",
        "preference.objective": changed_settings(arm.objective),
        "preference.steps": steps,
        "preference.warmup_steps": arm.warmup_steps,
        "preference_filter": left_out if arm.filtered_by else None,
    }
    options = (
        shlex.quote(f"{name}={json.dumps(value)}")
        for name, value in settings.items()
        if value is not None
    )
    return " ".join([f"{invocation()} study FILE", *(f"--set {option}" for option in options)])


MITIGATION_PAGE = Stage("mitigation-page", 30, mitigation_page)
