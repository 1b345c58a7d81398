"""Stages that write a page, each the last of its flow."""

from __future__ import annotations

from typing import Any

from dynolab.judges.config import JudgeConfig
from dynolab.objectives.registry import ObjectiveConfig
from dynolab.report.inputs.arms import (
    GroupPageInputs,
    PairRun,
    read_evaluated,
    read_group_run,
    read_pair_run,
)
from dynolab.report.inputs.study import (
    AuditPageInputs,
    ForcePageInputs,
    read_audit,
    read_checkpoint,
    read_kernel,
)
from dynolab.results.ledger_reader import read_ledger
from dynolab.training.config import OptimizerConfig
from tasks.answers import ANSWERS_OF, AnswersConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.page_helpers import PageConfig, facts_of, input_folder, input_metrics, page_shown
from tasks.shared.seeds import step_of


class AuditPageConfig(PageConfig):
    """Facts about the audit that the page shows."""

    objective: str


def audit_page(work: Work[AuditPageConfig]) -> dict[str, float]:
    """Reads inputs `data`, `audit`, and, if training is done, `foresight`.

    Results: `audit.html` and `figures/`; the page goes to MLflow. Returns the inputs' metrics.
    """
    from dynolab.report.audit import write_audit_page

    config = work.config
    with page_shown(work):
        inputs = AuditPageInputs(
            name=config.name,
            objective=config.objective,
            audit=read_audit(
                work.input_folder("data"),
                work.input_folder("audit"),
                input_folder(work, "foresight"),
            ),
            settings=config.settings,
            stages=facts_of(work.inputs),
        )
        write_audit_page(inputs, work.output)
    return {
        name: value
        for name, value in input_metrics(work).items()
        if name.startswith(("audit/", "foresight/"))
    }


AUDIT_PAGE = Stage("audit-page", 3, audit_page)


ANALYSIS = "analysis_"


class ForcePageConfig(PageConfig):
    """Facts about the analysis that the page shows."""

    labels: tuple[str, ...]
    reference: str | None


def force_page(work: Work[ForcePageConfig]) -> dict[str, float]:
    """Reads an `analysis_<label>` for every checkpoint, and `kernel`.

    Results: `forces.html` and `figures/`; the page goes to MLflow. Returns the metrics of
    the analyses and the kernel.
    """
    from dynolab.report.forces.page import write_force_page

    config = work.config
    with page_shown(work):
        inputs = ForcePageInputs(
            name=config.name,
            checkpoints=tuple(
                read_checkpoint(label, work.input_folder(ANALYSIS + label))
                for label in config.labels
            ),
            kernel=read_kernel(work.input_folder("kernel")),
            reference=config.reference,
            settings=config.settings,
            stages=facts_of(work.inputs, lambda name: name.replace("_", "-", 1)),
        )
        write_force_page(inputs, work.output)
    return input_metrics(work, "kernel") | {
        f"{label}/{name}": value
        for label in config.labels
        for name, value in input_metrics(work, ANALYSIS + label).items()
    }


FORCE_PAGE = Stage("force-page", 4, force_page)


def ledger_page(work: Work[PageConfig]) -> dict[str, float]:
    """Reads inputs `ledger` and `data`, the rows of its training.

    Results: `ledger.html` and `figures/`; the page goes to MLflow. Returns the ledger's metrics.
    """
    from dynolab.report.ledger.page import write_ledger_page

    config = work.config
    with page_shown(work):
        ledger = read_ledger(work.input_folder("ledger"), work.input_folder("data"))
        write_ledger_page(ledger, config.name, config.settings, facts_of(work.inputs), work.output)
    return input_metrics(work, "ledger")


LEDGER_PAGE = Stage("ledger-page", 5, ledger_page)


JUDGED_BY = "judged_"


class JudgePageConfig(PageConfig):
    """Facts about the comparison that the page shows."""

    baseline: str
    policies: tuple[str, ...]
    judges: dict[str, JudgeConfig]
    answers: AnswersConfig


def judge_page(work: Work[JudgePageConfig]) -> dict[str, float]:
    """Reads inputs `answers_<policy>` and `judged_<judge>`.

    Results: `judge.html`, `summary.json`, `agreements.jsonl` and `figures/`; the files go to MLflow
    too. Returns win rates, agreement and the counts of verdicts.
    """
    from dynolab.report.comparison.judges import (
        JudgePageInputs,
        read_judged,
        read_policy_answers,
        write_judge_page,
    )

    config = work.config
    with page_shown(work):
        inputs = JudgePageInputs(
            name=config.name,
            baseline=config.baseline,
            judges=config.judges,
            temperature=config.answers.sampling.temperature,
            answers={
                name: read_policy_answers(work.input_folder(ANSWERS_OF + name))
                for name in (*config.policies, config.baseline)
            },
            judged={
                name: read_judged(work.input_folder(JUDGED_BY + name)) for name in config.judges
            },
            settings=config.settings,
            stages=facts_of(work.inputs),
        )
        return write_judge_page(inputs, work.output)


JUDGE_PAGE = Stage("judge-page", 3, judge_page)


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
            stages=facts_of(work.inputs),
        )
        return write_group_page(inputs, work.output)


GROUP_PAGE = Stage("group-page", 6, group_page)


def read_run(work: Work[Any], arm: str, seed: int) -> PairRun:
    """Reads the results of an arm with one seed; all but its training only if they are inputs."""

    trained = work.input_folder(step_of(arm, seed))
    answers, judged, filtered = (
        input_folder(work, name)
        for name in (step_of(arm, seed, "said"), f"judge-{seed}", step_of(arm, seed, "filter"))
    )
    return read_pair_run(arm, trained, answers, judged, filtered)
