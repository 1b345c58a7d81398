"""Stage `group-page`: the page that compares trainings on sampled groups."""

from __future__ import annotations

from dynolab.objectives.registry import ObjectiveConfig
from dynolab.training.config import OptimizerConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.page_helpers import PageConfig, input_folder, page_shown, stage_facts
from tasks.shared.seeds import step_of


class GroupPageConfig(PageConfig):
    """Facts about the comparison that the page shows."""

    seeds: tuple[int, ...]
    arms: dict[str, ObjectiveConfig]
    baseline: str
    epsilon: float
    update: OptimizerConfig = OptimizerConfig()
    k: int


def group_page(work: Work[GroupPageConfig]) -> dict[str, float]:
    """Reads for every seed the start's evaluation, and for every arm and seed its training, its
    evaluation and, if there are any, its displacement test, forces and squeezing index.

    Results: `grpo.html`, `summary.json` and `figures/`; the files go to MLflow. Returns each
    arm's figures as means over seeds.
    """
    from dynolab.report.comparison.groups import write_group_page
    from dynolab.report.inputs.arms import GroupPageInputs, read_evaluated, read_group_run

    config = work.config
    with page_shown(work):
        inputs = GroupPageInputs(
            name=config.name,
            arms=config.arms,
            baseline=config.baseline,
            epsilon=config.epsilon,
            update=config.update,
            k=config.k,
            starts={
                seed: read_evaluated(work.input_folder(step_of("start", seed)))
                for seed in config.seeds
            },
            runs={
                (arm, seed): read_group_run(
                    arm,
                    work.input_folder(step_of(arm, seed)),
                    work.input_folder(step_of(arm, seed, "evaluation")),
                    displaced=input_folder(work, step_of(arm, seed, "displacement")),
                    forces=input_folder(work, step_of(arm, seed, "forces")),
                    squeezed=input_folder(work, step_of(arm, seed, "squeezing")),
                )
                for arm in config.arms
                for seed in config.seeds
            },
            settings=config.settings,
            stages=stage_facts(work),
        )
        return write_group_page(inputs, work.output)


GROUP_PAGE = Stage("group-page", 6, group_page)
