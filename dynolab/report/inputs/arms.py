"""Reads what the pages of comparisons show: every run's trainings, seed by seed.

A `GroupRun` trains on sampled groups, a `PairRun` on preference pairs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from dynolab.comparisons.arm_table import (
    SQUEEZE_INDEX,
    START,
    ArmTable,
    choice_figures,
    completion_figures,
    displacement_figures,
    evaluation_figures,
)
from dynolab.comparisons.matched import margin_path
from dynolab.comparisons.pair_arms import gap_by_margin, path_figures, win_figures
from dynolab.data.rows import read_value
from dynolab.objectives.registry import AnyConfig
from dynolab.report.inputs.study import PageInputs
from dynolab.results.arms import Divergence, RunFigures
from dynolab.results.audit import FilteredPairs
from dynolab.results.groups import (
    CompletionForce,
    LikelihoodChange,
    PromptScore,
    QuestionDisplacement,
    TokenChoice,
)
from dynolab.results.judges import Judgement, PolicyAnswer
from dynolab.results.study import (
    MetricsLine,
    ProbeScore,
    RisenMass,
    Training,
    TrainingSummary,
    read_training,
    rows,
)
from dynolab.squeezing.index import chosen_by_step, squeeze_index
from dynolab.statistics import Interval
from dynolab.training.config import OptimizerConfig


@dataclass(frozen=True)
class Evaluated:
    """One model's evaluation; only a trained model has a `likelihood`."""

    prompts: tuple[PromptScore, ...]
    likelihood: tuple[LikelihoodChange, ...] = ()

    def figures(self, k: int) -> dict[str, Interval]:
        """Means over prompts (`evaluation_figures`)."""
        return evaluation_figures(self.prompts, self.likelihood, k=k)


@dataclass(frozen=True)
class GroupRun:
    """One arm with one seed; `displaced` is None unless the objective trains on groups.

    `completions`, `choices`: what the push on each sampled answer did, and on the tokens that a
    rule chose; `training`: the probes and forces of recorded steps, under the arm's name; `risen`:
    where probability rose, if the arm was probed.
    """

    evaluated: Evaluated
    metrics: tuple[MetricsLine, ...]
    displaced: tuple[QuestionDisplacement, ...] | None = None
    completions: tuple[CompletionForce, ...] = ()
    choices: tuple[TokenChoice, ...] = ()
    training: Training | None = None
    risen: tuple[RisenMass, ...] = ()

    def figures(self, epsilon: float, k: int) -> dict[str, Interval]:
        """The run's figures, means over prompts; the squeezing index at the training's end."""
        ends = [steps[max(steps)] for steps in chosen_by_step(self.risen).values()]
        return {
            **self.evaluated.figures(k),
            **displacement_figures(self.displaced or (), epsilon),
            **completion_figures(self.completions),
            **choice_figures(self.choices),
            **path_figures(self.training.probes if self.training else ()),
            **({SQUEEZE_INDEX: squeeze_index(ends[0])} if ends else {}),
        }


@dataclass(frozen=True)
class GroupPageInputs(PageInputs):
    """Everything the page shows.

    `arms`: objectives by label; `baseline`: one of the labels; `epsilon`, `update`: bound and
    optimizer of the displacement test; `k`: the largest k of pass@k; `starts`: by seed, the
    evaluation of the model that its arms start from; `runs`: by arm and seed.
    """

    arms: Mapping[str, AnyConfig]
    baseline: str
    epsilon: float
    update: OptimizerConfig
    k: int
    starts: Mapping[int, Evaluated]
    runs: Mapping[tuple[str, int], GroupRun]

    @property
    def seeds(self) -> list[int]:
        """The seeds, in order."""
        return list(self.starts)

    def of_arm(self, arm: str) -> list[GroupRun]:
        """An arm's runs, seed by seed."""
        return [self.runs[arm, seed] for seed in self.seeds]

    @property
    def unit(self) -> str:
        """What intervals are computed over."""
        return "seeds" if len(self.seeds) > 1 else "prompts"

    def table(self) -> ArmTable:
        """Every arm's figures, and those of the models that the arms start from."""
        figures = {START: [start.figures(self.k) for start in self.starts.values()]} | {
            arm: [run.figures(self.epsilon, self.k) for run in self.of_arm(arm)]
            for arm in self.arms
        }
        only_seed = (
            {arm: runs[0] for arm, runs in figures.items()} if len(self.seeds) == 1 else None
        )
        return ArmTable({arm: list(map(_means, runs)) for arm, runs in figures.items()}, only_seed)


def curve(
    runs: Sequence[GroupRun], name: str
) -> tuple[Int[ndarray, " steps"], Float[ndarray, "steps seeds"]]:
    """A logged metric at the steps at which all of an arm's runs logged it."""
    logged = [
        {line.step: line.metrics[name] for line in run.metrics if name in line.metrics}
        for run in runs
    ]
    steps = sorted(set.intersection(*map(set, logged))) if logged else []
    table = np.array([[values[step] for values in logged] for step in steps], dtype=float)
    return np.array(steps, dtype=int), table.reshape(len(steps), len(runs))


@dataclass(frozen=True)
class PairRun:
    """One training with one seed.

    `summary` is None if the run diverged; `diverged` then holds the step. `sampled`: by figure,
    means over its model's answers and their contests with the baseline's, over `prompts` prompts;
    `won`: the share of held-out contests that it wins; `left_out`: ids of the pairs that its filter
    left out.
    """

    probes: tuple[ProbeScore, ...]
    summary: TrainingSummary | None = None
    diverged: Divergence | None = None
    sampled: Mapping[str, float] | None = None
    prompts: Mapping[str, int] | None = None
    won: Interval | None = None
    left_out: tuple[str, ...] = ()

    def row(self) -> RunFigures:
        """The run's figures; a diverged run has none."""
        if self.summary is None:
            return RunFigures(figures={}, diverged=self.diverged)
        watched = path_figures(self.probes)
        moved = _means(watched)
        ratios = gap_by_margin(moved)
        counts = _counts(watched)
        counts |= {name: counts[f"{name.partition('/')[0]}/margin"] for name in ratios}
        return RunFigures(
            figures=moved | ratios | dict(self.sampled or {}),
            counts=counts | dict(self.prompts or {}),
            left_out=self.left_out,
            path=margin_path(self.probes),
            alarm=self.summary.alarm,
        )


def read_evaluated(folder: Path) -> Evaluated:
    """Reads the result of an `evaluate` stage."""
    return Evaluated(
        rows(folder, "prompts.jsonl", PromptScore, optional=True),
        rows(folder, "likelihood.jsonl", LikelihoodChange, optional=True),
    )


def read_group_run(
    arm: str,
    trained: Path,
    evaluated: Path,
    *,
    displaced: Path | None,
    forces: Path | None,
    squeezed: Path | None,
) -> GroupRun:
    """Reads the results of an arm with one seed."""
    changes = rows(displaced, "displacement.jsonl", QuestionDisplacement, optional=True)
    training = replace(read_training(arm, trained, forces), stage=arm)
    return GroupRun(
        read_evaluated(evaluated),
        training.metrics,
        changes if displaced else None,
        rows(displaced, "completions.jsonl", CompletionForce, optional=True),
        rows(displaced, "token_choice.jsonl", TokenChoice, optional=True),
        training,
        rows(squeezed, "risen.jsonl", RisenMass, optional=True),
    )


def read_pair_run(
    arm: str,
    trained: Path,
    answers: Path | None,
    judged: Path | None,
    filtered: Path | None = None,
) -> PairRun:
    """Reads the results of a training, its model's answers, and its seed's judge.

    Reads only the divergence of a diverged training: its probes contain NaN.
    """
    if (divergence := trained / "divergence.json").exists():
        return PairRun((), diverged=read_value(divergence, Divergence))
    sampled: dict[str, float] = {}
    prompts: dict[str, int] = {}
    won: dict[str, Interval] = {}
    if answers is not None:
        policy_answers = rows(answers, "answers.jsonl", PolicyAnswer, optional=True)
        judgements = rows(judged, "judgements.jsonl", Judgement, optional=True)
        figures = json.loads((answers / "figures.json").read_text())
        won = win_figures(
            [judgement for judgement in judgements if judgement.a == arm],
            {answer.id: answer.split for answer in policy_answers},
        )
        measured = {name: figure for name, figure in figures.items() if figure["n"]}
        sampled = {name: figure["mean"] for name, figure in measured.items()} | _means(won)
        prompts = {name: figure["n"] for name, figure in measured.items()} | _counts(won)
    return PairRun(
        probes=rows(trained, "probes.jsonl", ProbeScore, optional=True),
        summary=read_value(trained / "summary.json", TrainingSummary),
        sampled=sampled,
        prompts=prompts,
        won=won.get("heldout/won"),
        left_out=read_value(filtered / "filter.json", FilteredPairs).dropped if filtered else (),
    )


def _means(figures: Mapping[str, Interval]) -> dict[str, float]:
    return {name: interval.mean for name, interval in figures.items() if interval.n}


def _counts(figures: Mapping[str, Interval]) -> dict[str, int]:
    return {name: interval.n for name, interval in figures.items() if interval.n}
