"""What the page of a comparison is made of: every arm's runs, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from dynolab.comparisons.group_arms import START, ArmTable, displacement_figures, evaluation_figures
from dynolab.data.rows import Row, read_rows
from dynolab.objectives.registry import AnyConfig
from dynolab.report.inputs.study import StageFacts
from dynolab.results.groups import LikelihoodChange, PromptScore, QuestionDisplacement
from dynolab.results.study import MetricsLine
from dynolab.statistics import Interval
from dynolab.training.config import OptimizerConfig


@dataclass(frozen=True)
class Evaluated:
    """One model's evaluation; `likelihood` of a trained one."""

    prompts: tuple[PromptScore, ...]
    likelihood: tuple[LikelihoodChange, ...] = ()

    def figures(self, k: int) -> dict[str, Interval]:
        """Means over prompts (`evaluation_figures`)."""
        return evaluation_figures(self.prompts, self.likelihood, k=k)


@dataclass(frozen=True)
class Run:
    """One arm with one seed; `displaced` is None where the objective is not one on groups."""

    evaluated: Evaluated
    metrics: tuple[MetricsLine, ...]
    displaced: tuple[QuestionDisplacement, ...] | None = None

    def figures(self, epsilon: float, k: int) -> dict[str, Interval]:
        """The run's figures, means over prompts."""
        return self.evaluated.figures(k) | displacement_figures(self.displaced or (), epsilon)


@dataclass(frozen=True)
class GroupPageInputs:
    """All that the page shows.

    `arms` are objectives by label, `baseline` one of the labels; `epsilon` and `update` the bound
    and the optimizer of the displacement test; `k` the largest of pass@k; `starts` the evaluations
    of the models that each seed's arms start from; `runs` every arm with every seed.
    """

    name: str
    arms: Mapping[str, AnyConfig]
    baseline: str
    epsilon: float
    update: OptimizerConfig
    k: int
    starts: Mapping[int, Evaluated]
    runs: Mapping[tuple[str, int], Run]
    settings: str = ""
    stages: tuple[StageFacts, ...] = ()

    @property
    def seeds(self) -> list[int]:
        """The seeds in their order."""
        return list(self.starts)

    def of_arm(self, arm: str) -> list[Run]:
        """An arm's runs, seed by seed."""
        return [self.runs[arm, seed] for seed in self.seeds]

    @property
    def unit(self) -> str:
        """What intervals are over."""
        return "seeds" if len(self.seeds) > 1 else "prompts"

    def table(self) -> ArmTable:
        """Every arm's figures, and those of the models that the arms start from."""
        found = {START: [one.figures(self.k) for one in self.starts.values()]}
        found |= {
            arm: [run.figures(self.epsilon, self.k) for run in self.of_arm(arm)]
            for arm in self.arms
        }
        one_seed = {arm: runs[0] for arm, runs in found.items()} if len(self.seeds) == 1 else None
        return ArmTable({arm: list(map(_means, runs)) for arm, runs in found.items()}, one_seed)


def curve(
    runs: Sequence[Run], name: str
) -> tuple[Int[ndarray, " steps"], Float[ndarray, "steps seeds"]]:
    """A logged metric over the steps that all of an arm's runs have it at."""
    logged = [
        {line.step: line.metrics[name] for line in run.metrics if name in line.metrics}
        for run in runs
    ]
    steps = sorted(set.intersection(*map(set, logged))) if logged else []
    values = np.array([[one[step] for one in logged] for step in steps], dtype=float)
    return np.array(steps, dtype=int), values.reshape(len(steps), len(runs))


AnyRow = TypeVar("AnyRow", bound=Row)


def read_evaluated(folder: Path) -> Evaluated:
    """Reads the result of an `evaluate` stage."""
    return Evaluated(
        _rows(folder / "prompts.jsonl", PromptScore),
        _rows(folder / "likelihood.jsonl", LikelihoodChange),
    )


def read_run(trained: Path, evaluated: Path, displaced: Path | None) -> Run:
    """Reads the results of an arm with one seed."""
    tested = displaced / "displacement.jsonl" if displaced else None
    found = _rows(tested, QuestionDisplacement) if tested else None
    return Run(read_evaluated(evaluated), _rows(trained / "metrics.jsonl", MetricsLine), found)


def _rows(file: Path, kind: type[AnyRow]) -> tuple[AnyRow, ...]:
    return tuple(read_rows(file, kind)) if file.exists() else ()


def _means(figures: Mapping[str, Interval]) -> dict[str, float]:
    return {name: one.mean for name, one in figures.items() if one.n}
