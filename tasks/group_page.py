"""Stage `group-page`: the page that compares trainings on sampled groups."""

from __future__ import annotations

from dynolab.objectives.registry import ObjectiveConfig
from dynolab.training.config import OptimizerConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.page_helpers import PageConfig, input_folder, page_shown, stage_facts


def start_of(seed: int) -> str:
    """Name of the input with the evaluation of the model that a seed's arms start from."""
    return f"start-{seed}"


def training_of(arm: str, seed: int) -> str:
    """Name of the input with an arm's training."""
    return f"{arm}-{seed}"


def evaluation_of(arm: str, seed: int) -> str:
    """Name of the input with the evaluation of an arm's model."""
    return f"{arm}-{seed}-evaluation"


def displacement_of(arm: str, seed: int) -> str:
    """Name of the input with the displacement test of an arm's objective."""
    return f"{arm}-{seed}-displacement"


def forces_of(arm: str, seed: int) -> str:
    """Name of the input with the forces of an arm's recorded steps."""
    return f"{arm}-{seed}-forces"


def squeezing_of(arm: str, seed: int) -> str:
    """Name of the input with the squeezing index of an arm."""
    return f"{arm}-{seed}-squeezing"


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
                seed: read_evaluated(work.input_folder(start_of(seed))) for seed in config.seeds
            },
            runs={
                (arm, seed): read_group_run(
                    arm,
                    work.input_folder(training_of(arm, seed)),
                    work.input_folder(evaluation_of(arm, seed)),
                    displaced=input_folder(work, displacement_of(arm, seed)),
                    forces=input_folder(work, forces_of(arm, seed)),
                    squeezed=input_folder(work, squeezing_of(arm, seed)),
                )
                for arm in config.arms
                for seed in config.seeds
            },
            settings=config.settings,
            stages=stage_facts(work),
        )
        return write_group_page(inputs, work.output)


GROUP_PAGE = Stage("group-page", 6, group_page)
