"""What the pages of compared preference trainings are made of: every arm's runs, seed by seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dynolab.comparisons.group_arms import ArmTable
from dynolab.comparisons.pair_arms import gap_by_margin, path_figures, win_figures
from dynolab.data.rows import Row, read_rows, read_value
from dynolab.results.arms import ComparedArms, Divergence, RunFigures
from dynolab.results.judges import Judgement, PolicyAnswer
from dynolab.results.study import ProbeScore, TrainingSummary
from dynolab.statistics import Interval


@dataclass(frozen=True)
class PairRun:
    """One training with one seed.

    `summary` is None where it diverged: `diverged` says when. `said` are the means of what its
    model says, by figure, and of how its answers fared against the baseline's.
    """

    probes: tuple[ProbeScore, ...]
    summary: TrainingSummary | None = None
    diverged: Divergence | None = None
    said: Mapping[str, float] | None = None
    won: Interval | None = None

    def row(self) -> RunFigures:
        """The run in a few numbers; those of a diverged run stand for nothing."""
        if self.summary is None:
            return RunFigures(figures={}, diverged=self.diverged)
        moved = {name: one.mean for name, one in path_figures(self.probes).items() if one.n}
        moved |= gap_by_margin(moved)
        return RunFigures(figures=moved | dict(self.said or {}), alarm=self.summary.alarm)


def arm_table_of(compared: ComparedArms) -> ArmTable:
    """Every arm's figures, seed by seed."""
    return ArmTable({arm: [run.figures for run in runs] for arm, runs in compared.runs.items()})


AnyRow = TypeVar("AnyRow", bound=Row)


def read_pair_run(arm: str, trained: Path, said: Path | None, judged: Path | None) -> PairRun:
    """Reads the results of a training, of what its model says, and of its seed's judge.

    Of a diverged training nothing counts but that: its probes hold what is no number.
    """
    if (lost := trained / "divergence.json").exists():
        return PairRun((), diverged=read_value(lost, Divergence))
    figures: dict[str, float] = {}
    won: dict[str, Interval] = {}
    if said is not None:
        splits = {one.id: one.split for one in _rows(said, "answers.jsonl", PolicyAnswer)}
        judgements = [one for one in _rows(judged, "judgements.jsonl", Judgement) if one.a == arm]
        told = json.loads((said / "figures.json").read_text())
        figures = {name: one["mean"] for name, one in told.items() if one["n"]}
        won = win_figures(judgements, splits)
        figures |= {name: one.mean for name, one in won.items() if one.n}
    return PairRun(
        probes=_rows(trained, "probes.jsonl", ProbeScore),
        summary=read_value(trained / "summary.json", TrainingSummary),
        said=figures,
        won=won.get("heldout/won"),
    )


def _rows(folder: Path | None, name: str, kind: type[AnyRow]) -> tuple[AnyRow, ...]:
    file = folder / name if folder else None
    return tuple(read_rows(file, kind)) if file and file.exists() else ()
